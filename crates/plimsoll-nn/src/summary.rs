//! `model.summary(batch)`: the layers, their parameters, and the bytes that each keeps for backward.
//!
//! The bytes are not estimated: the forward pass runs on a ghost under a tape, and the table lists what the tape holds
//! then, by layer. Weights that backward reads are the parameters' bytes already and are not counted again.

use std::fmt;

use plimsoll_tensor::{Bytes, Device, GradientTape, Nested, Result, Shape, Tensor, with_ghosts};

use crate::model::{Mode, Model, join};

/// A table of layers; it prints itself.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The layers, outermost first.
    pub rows: Vec<SummaryRow>,
    /// The shape of the batch that went in; of several tensors, each.
    pub input: Nested<Shape>,
    /// The weights of the whole model.
    pub n_parameters: usize,
    /// Those of them that are trained.
    pub n_trainable: usize,
    /// The bytes of all variables, masters included.
    pub parameter_bytes: usize,
    /// The bytes that the whole model keeps for backward.
    pub saved_bytes: usize,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryRow {
    /// How many layers are around it.
    pub depth: usize,
    /// The name inside the layer around it.
    pub name: String,
    /// The kind of layer.
    pub kind: String,
    /// The shape of one example that comes out; of several tensors, each.
    pub output: Nested<Shape>,
    /// The weights of the layer and its parts.
    pub n_parameters: usize,
    /// The bytes that the layer and its parts keep for backward.
    pub saved_bytes: usize,
}

impl Summary {
    pub(crate) fn of(model: &Model, input: &Nested<Shape>) -> Result<Summary> {
        let variables = model.variables();
        let saved = saved_by_path(model, input)?;
        let mut rows = Vec::new();
        add_rows(model, (0, model.name()), &saved, &mut rows);
        let elements = |trainable_only: bool| {
            let counted = variables.iter().filter(|variable| !trainable_only || variable.is_trainable());
            counted.map(|variable| variable.n_elems()).sum()
        };
        let masters = variables.iter().filter_map(|variable| variable.master());
        Ok(Summary {
            rows,
            input: input.clone(),
            n_parameters: elements(false),
            n_trainable: elements(true),
            parameter_bytes: variables.iter().chain(masters).map(|variable| variable.n_bytes()).sum(),
            saved_bytes: saved.iter().map(|(_, bytes)| bytes).sum(),
        })
    }
}

/// The bytes that a forward pass keeps, with the path of the layer whose backward reads them.
fn saved_by_path(model: &Model, input: &Nested<Shape>) -> Result<Vec<(String, usize)>> {
    with_ghosts(&model.variables(), &Device::ghost_cpu(), || {
        let tape = GradientTape::new();
        let output = tape.record(|| {
            let mut dtypes = model.input_dtypes().into_iter();
            let mut zeros = |shape| {
                Tensor::zeros_of(shape, dtypes.next().unwrap_or_else(|| model.policy().compute_dtype()))
            };
            model.forward_nested(input.try_map(&mut zeros)?, Mode::Train)
        })?;
        let saved = tape.saved();
        drop(output);
        let own = saved.values().iter().filter(|value| value.own);
        Ok(own.map(|value| (value.site.scope().to_owned(), value.bytes)).collect())
    })
}

/// Adds the rows of a model's parts; `path` is the model's own, which depends on the models that it is nested in.
fn add_rows(
    model: &Model,
    (depth, path): (usize, &str),
    saved: &[(String, usize)],
    rows: &mut Vec<SummaryRow>,
) {
    for part in model.parts() {
        let path = join(path, part.name());
        let inside = |scope: &str| {
            scope.strip_prefix(&*path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        rows.push(SummaryRow {
            depth,
            name: part.name().to_owned(),
            kind: part.kind().to_owned(),
            output: part.output_shapes().clone(),
            n_parameters: part.n_parameters(),
            saved_bytes: saved.iter().filter(|(scope, _)| inside(scope)).map(|(_, bytes)| bytes).sum(),
        });
        add_rows(part, (depth + 1, &path), saved, rows);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grouped = |n: usize| Bytes::new(n as u64).grouped();
        writeln!(f, "input {}", self.input)?;
        writeln!(f, "{:<32} {:<20} {:>14} {:>18}", "layer", "output", "parameters", "saved for backward")?;
        for row in &self.rows {
            let name = match row.name == row.kind {
                true => row.name.clone(),
                false => format!("{} ({})", row.name, row.kind),
            };
            let name = format!("{}{name}", "  ".repeat(row.depth));
            let output = row.output.to_string();
            let parameters = grouped(row.n_parameters);
            writeln!(f, "{name:<32} {output:<20} {parameters:>14} {:>16} B", grouped(row.saved_bytes))?;
        }
        writeln!(
            f,
            "{} parameters, {} of them trained, {} B",
            grouped(self.n_parameters),
            grouped(self.n_trainable),
            grouped(self.parameter_bytes)
        )?;
        write!(f, "{} B saved for backward", grouped(self.saved_bytes))
    }
}
