//! A graph as people read it: as text, a line for each call, and as a picture in Graphviz's language.
//!
//! Names come from users, so they may hold anything: in text they are quoted as Rust quotes strings, and in a picture quotes,
//! backslashes and line ends are escaped, and other control characters are written as their numbers.

use std::fmt::{self, Write as _};

use super::{Effect, Graph, State, lock};
use crate::base::error::Result;
use crate::program::{Call, Phase, Place, Tracer, ValueView};

impl fmt::Display for Graph {
    /// `%12 = matmul(placeholder 0, "w")  float32[64, 10]  forward  src/main.rs:10 matmul`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.core.with_tracer(|tracer| Ok(text(tracer, &lock(&self.core.state))));
        match text {
            Ok(text) => f.write_str(&text),
            Err(refusal) => write!(f, "graph: {refusal}"),
        }
    }
}

impl Graph {
    /// The graph in Graphviz's language: an ellipse for each placeholder, variable and constant, a box for each call, an arrow for
    /// each value that a call reads; what belongs to gradients is dashed.
    ///
    /// # Errors
    /// A graph that another thread has entered.
    pub fn to_dot(&self) -> Result<String> {
        self.core.with_tracer(|tracer| Ok(dot(tracer, &lock(&self.core.state))))
    }
}

fn text(tracer: &Tracer, state: &State) -> String {
    let n_variables = tracer.symbolic().map_or(0, |symbolic| symbolic.variables.len());
    let mut text = format!(
        "graph: {} calls, {} placeholders, {n_variables} variables, {} operations\n",
        tracer.n_calls(),
        state.placeholders.len(),
        state.effects.len()
    );
    for number in 0..tracer.n_calls() {
        let call = tracer.call_numbered(number);
        let names = |views: &[ValueView]| {
            views.iter().map(|view| name(tracer, state, view.value)).collect::<Vec<_>>().join(", ")
        };
        let shape = call.outputs.first().map(|view| format!("{}{}", view.meta.dtype, view.meta.shape()));
        // Writing to a string does not fail.
        _ = writeln!(
            text,
            "  {} = {}({})  {}  {}  {}",
            names(&call.outputs),
            call.op.name(),
            names(&call.inputs),
            shape.unwrap_or_default(),
            call.phase.name(),
            call.site
        );
        for (token, effect) in call.outputs.iter().filter_map(|view| state.effects.get_key_value(&view.value))
        {
            _ = writeln!(
                text,
                "    fetching {} {}",
                name(tracer, state, *token),
                in_words(tracer, state, effect)
            );
        }
    }
    text
}

/// What an operation does.
fn in_words(tracer: &Tracer, state: &State, effect: &Effect) -> String {
    let Effect::Update(updates) = effect else { return "initialises all variables".to_owned() };
    let one = |update: &super::GraphUpdate| {
        let cells: Vec<String> = update.cells.iter().map(|cell| format!("{:?}", cell.name())).collect();
        let inputs: Vec<String> = update.inputs.iter().map(|view| name(tracer, state, view.value)).collect();
        format!("updates {} by {}({})", cells.join(", "), update.op.name(), inputs.join(", "))
    };
    updates.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// How the text calls a value.
fn name(tracer: &Tracer, state: &State, value: u32) -> String {
    if let Some(name) = state.names.get(&value) {
        return format!("{name:?}");
    }
    match tracer.value(value).place {
        Place::Argument(number) => format!("placeholder {number}"),
        Place::Captured(number) => format!("constant {number}"),
        Place::Variable(number) => {
            let name = tracer.variable_input(number).0.map(|cell| cell.name());
            match name.filter(|name| !name.is_empty()) {
                Some(name) => format!("{name:?}"),
                None => format!("variable {number}"),
            }
        }
        Place::Block(_) => format!("%{value}"),
    }
}

fn dot(tracer: &Tracer, state: &State) -> String {
    let mut text =
        String::from("digraph graph_of_calls {\n  rankdir=TB;\n  node [fontname=\"monospace\"];\n");
    let mut shown = std::collections::BTreeSet::new();
    for number in 0..tracer.n_calls() {
        let call = tracer.call_numbered(number);
        for view in &call.inputs {
            if tracer.value(view.value).call.is_none() && shown.insert(view.value) {
                let label =
                    format!("{}\n{}{}", plain_name(tracer, state, view), view.meta.dtype, view.meta.shape());
                _ = writeln!(text, "  v{} [shape=ellipse, label={}];", view.value, quoted(&label));
            }
        }
        let style = if call.phase == Phase::Backward { ", style=dashed" } else { "" };
        _ = writeln!(text, "  c{number} [shape=box{style}, label={}];", quoted(&call_label(state, call)));
        for view in &call.inputs {
            let (dtype, shape) = (view.meta.dtype, view.meta.shape());
            let label = quoted(&format!("{dtype}{shape}"));
            match tracer.value(view.value).call {
                Some(maker) => _ = writeln!(text, "  c{maker} -> c{number} [label={label}];"),
                None => _ = writeln!(text, "  v{} -> c{number};", view.value),
            }
        }
    }
    text.push_str("}\n");
    text
}

fn call_label(state: &State, call: &Call) -> String {
    let names = call.outputs.iter().filter_map(|view| state.names.get(&view.value));
    let names: Vec<&str> = names.map(String::as_str).collect();
    let shape = call.outputs.first().map(|view| format!("{}{}", view.meta.dtype, view.meta.shape()));
    let shape = shape.unwrap_or_default();
    match names.is_empty() {
        true => format!("{}\n{shape}\n{}", call.op.name(), call.site),
        false => format!("{}\n{}\n{shape}\n{}", names.join(", "), call.op.name(), call.site),
    }
}

/// The name that somebody gave a source, else how the text calls it.
fn plain_name(tracer: &Tracer, state: &State, view: &ValueView) -> String {
    if let Some(name) = state.names.get(&view.value) {
        return name.clone();
    }
    let variable = match tracer.value(view.value).place {
        Place::Variable(number) => tracer.variable_input(number).0.map(|cell| cell.name()),
        _ => None,
    };
    variable.filter(|name| !name.is_empty()).unwrap_or_else(|| name(tracer, state, view.value))
}

/// A string in Graphviz's quotes.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => _ = write!(quoted, "\\\\u{{{:x}}}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn what_graphviz_would_read_otherwise_is_escaped() {
        assert_eq!(quoted("a\"]; x -> y [b=\"\\N\n\u{0}é"), r#""a\"]; x -> y [b=\"\\N\n\\u{0}é""#);
    }
}
