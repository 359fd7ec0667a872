//! The layer that a thread is in: the names of its open layer scopes, joined to a path.

use std::ops::Range;

use plimsoll_memory::Site;

use super::{LABELS, site};
use crate::base::scopes::{OpenScope, Scopes};

/// The open layer scopes as one text, so that entering a layer allocates nothing once the text has room for it.
pub(super) struct Layers {
    /// The names of all open scopes, one after the other, with the dots that join them.
    text: String,
    open: Scopes<Layer>,
}

/// One open scope.
struct Layer {
    /// Where its name stands in the text.
    name: Range<usize>,
    /// Whether the path begins with it, whatever is open around it.
    is_root: bool,
    /// Where it was described, if anybody knows.
    described: Site,
    path: Path,
}

/// The path that ends with a layer.
#[derive(Clone, Copy)]
struct Path {
    /// Where it begins in the text.
    start: usize,
    /// What stands for it where labels are looked up: its FNV hash, which grows with it.
    number: u64,
    /// Where the innermost of its layers was described of which anybody knows.
    described: Site,
}

/// The path outside all layers.
const OUTSIDE: Path = Path { start: 0, number: 0xCBF2_9CE4_8422_2325, described: Site::UNKNOWN };

/// A path of layers to come back to.
pub(crate) struct LayerPath {
    path: String,
    described: Site,
}

impl Layers {
    pub(super) const fn new() -> Layers {
        Layers { text: String::new(), open: Scopes::new() }
    }

    fn current(&self) -> Path {
        self.open.innermost().map_or(OUTSIDE, |layer| layer.path)
    }

    /// The names of the open layers, joined by dots.
    pub(super) fn path(&self) -> &str {
        &self.text[self.current().start..]
    }

    /// A number that stands for the path.
    #[inline]
    pub(super) fn number(&self) -> u64 {
        self.current().number
    }

    /// Where the innermost layer was described.
    #[inline]
    pub(super) fn described(&self) -> Site {
        self.current().described
    }

    fn begin(&mut self, name: &str, described: Site, is_root: bool) -> u64 {
        let around = self.current();
        let layer = Layer::append(&mut self.text, around, name, described, is_root);
        self.open.begin(layer)
    }

    fn end(&mut self, number: u64) {
        let is_innermost = self.open.number() == number;
        self.open.end(number);
        if is_innermost {
            return self.text.truncate(self.open.innermost().map_or(0, |layer| layer.name.end));
        }
        // A scope around others has ended: their path is joined anew.
        let before = std::mem::take(&mut self.text);
        let mut path = OUTSIDE;
        for layer in self.open.iter_mut() {
            let name = &before[layer.name.clone()];
            *layer = Layer::append(&mut self.text, path, name, layer.described, layer.is_root);
            path = layer.path;
        }
    }
}

impl Layer {
    /// Adds a layer to a text that ends with `path`.
    fn append(text: &mut String, path: Path, name: &str, described: Site, is_root: bool) -> Layer {
        let start = text.len();
        let mut path = if is_root { Path { start, ..OUTSIDE } } else { path };
        if path.start < start && !name.is_empty() {
            text.push('.');
        }
        if described != Site::UNKNOWN {
            path.described = described;
        }
        let name_start = text.len();
        text.push_str(name);
        path.number = text[start..]
            .bytes()
            .fold(path.number, |number, byte| (number ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3));
        Layer { name: name_start..text.len(), is_root, described, path }
    }
}

/// Enters the layer scope `name`: until it is dropped, bytes are labelled with it. Scopes nest to a path such as
/// `encoder.0.attention`, which is made of the names of those that are open; one without a name adds nothing.
pub fn enter_scope(name: &str) -> OpenScope {
    enter_layer(name, Site::UNKNOWN)
}

/// The same for a layer that was described at that place; where nobody knows, what is said of the layer around it holds.
pub fn enter_layer(name: &str, described: Site) -> OpenScope {
    begin(name, described, false)
}

fn begin(name: &str, described: Site, is_root: bool) -> OpenScope {
    let number = LABELS.with(|labels| labels.layers.borrow_mut().begin(name, described, is_root));
    OpenScope::new(number, |number| {
        _ = LABELS.try_with(|labels| labels.layers.borrow_mut().end(number));
    })
}

/// Runs `f` inside the layer scope `name`; scopes nest to a path such as `encoder.0.attention`.
pub fn scope<R>(name: &str, f: impl FnOnce() -> R) -> R {
    let _layer = enter_scope(name);
    f()
}

/// The path of layer names that is open on this thread, such as `encoder.0.attention`; empty outside.
pub fn current_scope() -> String {
    LABELS.with(|labels| labels.layers.borrow().path().to_owned())
}

/// The path that is open, to come back to.
pub(crate) fn current_layer() -> LayerPath {
    LABELS.with(|labels| {
        let layers = labels.layers.borrow();
        LayerPath { path: layers.path().to_owned(), described: layers.described() }
    })
}

/// Runs `f` in the layers of that path, in place of those that are open: for what runs later on behalf of a layer.
pub(crate) fn in_layer<R>(layer: &LayerPath, f: impl FnOnce() -> R) -> R {
    let _layer = begin(&layer.path, layer.described, true);
    f()
}

/// The site of an op that runs now, if it is inside a layer: what [`in_layer_of`] is given later.
pub(crate) fn layer_site(op: &'static str) -> Site {
    let is_outside = LABELS.with(|labels| {
        let layers = labels.layers.borrow();
        layers.path().is_empty() && layers.described() == Site::UNKNOWN
    });
    if is_outside { Site::UNKNOWN } else { site(op) }
}

/// Runs `f` in the layer of that site, in place of those that are open; outside all layers, as it is.
pub(crate) fn in_layer_of<R>(site: Site, f: impl FnOnce() -> R) -> R {
    if site == Site::UNKNOWN {
        return f();
    }
    let (path, described) = site.layer();
    let _layer = begin(path, described, true);
    f()
}
