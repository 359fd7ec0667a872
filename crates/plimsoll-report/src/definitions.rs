//! The texts and lines that a file knows, each defined once and then named by its number.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use plimsoll_memory::Site;

use crate::code::{put, put_text};

/// The number of a site that the file does not know.
const UNKNOWN: u32 = u32::MAX;

/// What has been defined in a chapter, and what is still to be written of it.
#[derive(Default)]
pub(crate) struct Definitions {
    texts: HashMap<&'static str, u32>,
    /// The numbers of sites in the file, by their own, since each event has one; [`UNKNOWN`] for those that it has not.
    sites: Vec<u32>,
    n_sites: u32,
    coded: Vec<u8>,
    n_coded: u64,
}

impl Definitions {
    /// The number of a site, which the file learns of with the next frame.
    pub fn site(&mut self, site: Site) -> u32 {
        match self.sites.get(site.number() as usize) {
            Some(&number) if number != UNKNOWN => number,
            _ => self.define(site),
        }
    }

    fn define(&mut self, site: Site) -> u32 {
        let at = site.number() as usize;
        if at >= self.sites.len() {
            self.sites.resize(at + 1, UNKNOWN);
        }
        let texts = [site.file(), site.scope(), site.op()].map(|text| self.text(text));
        let described = site.described().map(|(file, line)| (self.text(file), line));
        let (described_file, described_line) = described.unwrap_or((texts[0], 0));
        self.n_coded += 1;
        self.coded.push(1);
        let [file, scope, op] = texts;
        for number in [file, site.line(), scope, op, described_file, described_line] {
            put(number.into(), &mut self.coded);
        }
        self.sites[at] = self.n_sites;
        self.n_sites += 1;
        self.sites[at]
    }

    pub fn text(&mut self, text: &'static str) -> u32 {
        let number = self.texts.len() as u32;
        match self.texts.entry(text) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.coded.push(0);
                put_text(text, &mut self.coded);
                self.n_coded += 1;
                *new.insert(number)
            }
        }
    }

    /// What the file does not know yet, with its number in front.
    pub fn take(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        put(std::mem::take(&mut self.n_coded), &mut all);
        all.append(&mut self.coded);
        all
    }
}
