//! Reading a specification such as `"bhid,bhjd->bhij"` together with the shapes that it is for.

use std::fmt::Display;

use crate::error::{Error, Result};
use crate::shape::{MAX_RANK, Shape};

/// A name of an axis: a letter, or a place of the ellipsis, counted from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Label {
    /// An axis that `...` stands for. The one furthest from the end comes first.
    Ellipsis(std::cmp::Reverse<usize>),
    /// An axis with a letter.
    Letter(char),
}

/// Which axes each operand has, and which the result has.
#[derive(Debug)]
pub(super) struct Spec {
    /// The labels of each operand's axes; one may occur twice.
    pub operands: Vec<Vec<Label>>,
    /// The labels of the result's axes, each once.
    pub output: Vec<Label>,
    /// The extent of each label. Where some operands have one and others have more, it is that of the others.
    pub extents: Vec<(Label, usize)>,
}

impl Spec {
    /// Reads a specification for operands of those shapes.
    ///
    /// # Errors
    /// The text is not a specification, or the shapes do not fit it; the error shows the text and what clashes.
    pub fn new(text: &str, shapes: &[&Shape]) -> Result<Spec> {
        let parser = Parser { text };
        let (inputs, output) = match text.split_once("->") {
            Some((inputs, output)) => (inputs, Some(output)),
            None => (text, None),
        };
        let terms: Vec<Term> = inputs.split(',').map(|term| parser.term(term)).collect::<Result<_>>()?;
        if terms.len() != shapes.len() {
            return Err(parser.wrong(format!(
                "it names {} operands, but {} are given",
                terms.len(),
                shapes.len()
            )));
        }
        let operands: Vec<Vec<Label>> = terms
            .iter()
            .zip(shapes)
            .enumerate()
            .map(|(idx, (term, shape))| parser.labels(term, shape, idx))
            .collect::<Result<_>>()?;
        let extents = parser.extents(&operands, shapes)?;
        let output = match output {
            Some(output) => parser.output(&parser.term(output)?, &extents)?,
            None => implicit_output(&operands, &extents),
        };
        if output.len() > MAX_RANK {
            return Err(parser
                .wrong(format!("its result has {} axes; at most {MAX_RANK} are possible", output.len())));
        }
        Ok(Spec { operands, output, extents })
    }

    /// The extent of a label.
    pub fn extent(&self, label: Label) -> usize {
        self.extents.iter().find(|(known, _)| *known == label).map_or(1, |&(_, extent)| extent)
    }
}

/// The letters of one operand, and how many of them stand before the ellipsis, if there is one.
struct Term {
    letters: Vec<char>,
    ellipsis: Option<usize>,
}

/// The text that is read, for errors.
struct Parser<'a> {
    text: &'a str,
}

impl Parser<'_> {
    fn wrong(&self, problem: impl Display) -> Error {
        Error::argument("einsum", format!("in \"{}\", {problem}", self.text))
    }

    /// Reads what stands between two commas.
    fn term(&self, text: &str) -> Result<Term> {
        let mut term = Term { letters: Vec::new(), ellipsis: None };
        let mut rest = text.trim();
        while let Some(letter) = rest.chars().next() {
            match rest.strip_prefix("...") {
                Some(_) if term.ellipsis.is_some() => {
                    return Err(self.wrong(format!("`{text}` has two ellipses")));
                }
                Some(behind) => {
                    term.ellipsis = Some(term.letters.len());
                    rest = behind;
                    continue;
                }
                None if letter.is_ascii_alphabetic() => term.letters.push(letter),
                None if letter == ' ' => {}
                None => {
                    return Err(self.wrong(format!(
                        "`{letter}` is no index; indices are letters from a to z and A to Z"
                    )));
                }
            }
            rest = &rest[letter.len_utf8()..];
        }
        Ok(term)
    }

    /// The labels of an operand's axes.
    fn labels(&self, term: &Term, shape: &Shape, operand: usize) -> Result<Vec<Label>> {
        let n_letters = term.letters.len();
        let fits =
            if term.ellipsis.is_some() { shape.rank() >= n_letters } else { shape.rank() == n_letters };
        if !fits {
            return Err(self.wrong(format!(
                "operand {operand} has {n_letters} indices, but its shape {shape} has {} axes",
                shape.rank()
            )));
        }
        Ok(term.spelled(shape.rank() - n_letters))
    }

    /// The extent of every label, in the order of the labels.
    fn extents(&self, operands: &[Vec<Label>], shapes: &[&Shape]) -> Result<Vec<(Label, usize)>> {
        let mut extents: Vec<(Label, usize)> = Vec::new();
        for (labels, shape) in operands.iter().zip(shapes) {
            for (&label, &extent) in labels.iter().zip(shape.iter()) {
                match extents.iter_mut().find(|(known, _)| *known == label) {
                    None => extents.push((label, extent)),
                    Some((_, known)) if *known == 1 => *known = extent,
                    Some((_, known)) if *known == extent || extent == 1 => {}
                    Some((_, known)) => return Err(self.clash(label, *known, extent, shapes)),
                }
            }
        }
        // An axis of extent one may stand for many in another operand, but not beside them on one diagonal.
        for (labels, shape) in operands.iter().zip(shapes) {
            for (axis, label) in labels.iter().enumerate() {
                let first = labels.iter().position(|other| other == label).unwrap_or(axis);
                if shape[first] != shape[axis] {
                    return Err(self.clash(*label, shape[first], shape[axis], shapes));
                }
            }
        }
        extents.sort_unstable();
        Ok(extents)
    }

    fn clash(&self, label: Label, one: usize, other: usize, shapes: &[&Shape]) -> Error {
        let shapes: Vec<String> = shapes.iter().map(ToString::to_string).collect();
        let label = match label {
            Label::Letter(letter) => format!("index {letter}"),
            Label::Ellipsis(std::cmp::Reverse(place)) => {
                format!("axis {} of the ellipsis", -(place as isize) - 1)
            }
        };
        self.wrong(format!("{label} is both {one} and {other} in the shapes {}", shapes.join(" and ")))
    }

    /// The labels of the result, as they are written.
    fn output(&self, term: &Term, extents: &[(Label, usize)]) -> Result<Vec<Label>> {
        let n_ellipsis = extents.iter().filter(|(label, _)| matches!(label, Label::Ellipsis(_))).count();
        let labels = term.spelled(n_ellipsis);
        for (idx, label) in labels.iter().enumerate() {
            let Label::Letter(letter) = label else { continue };
            if labels[..idx].contains(label) {
                return Err(self.wrong(format!("the result has the index {letter} twice")));
            }
            if !extents.iter().any(|(known, _)| known == label) {
                return Err(self.wrong(format!("the result has the index {letter}, which no operand has")));
            }
        }
        Ok(labels)
    }
}

impl Term {
    /// The labels, with as many axes in the place of the ellipsis as there are.
    fn spelled(&self, n_ellipsis: usize) -> Vec<Label> {
        let letter = |&letter: &char| Label::Letter(letter);
        let Some(n_before) = self.ellipsis else { return self.letters.iter().map(letter).collect() };
        let axes = (0..n_ellipsis).rev().map(|place| Label::Ellipsis(std::cmp::Reverse(place)));
        let (before, behind) = self.letters.split_at(n_before);
        before.iter().map(letter).chain(axes).chain(behind.iter().map(letter)).collect()
    }
}

/// The ellipsis, and the letters that occur once, in the order of the alphabet.
fn implicit_output(operands: &[Vec<Label>], extents: &[(Label, usize)]) -> Vec<Label> {
    let occurs = |label: Label| operands.iter().flatten().filter(|&&other| other == label).count();
    let stays = |&label: &Label| matches!(label, Label::Ellipsis(_)) || occurs(label) == 1;
    extents.iter().map(|&(label, _)| label).filter(stays).collect()
}
