//! The docs of tensors' methods: each has an example, and is found under the name that it has in PyTorch.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use plimsoll_tensor::ops::registry::{composed, registry};
use plimsoll_testkit::sources;

/// Methods without an example from the registry: the same as another, that takes its operand's memory, has other defaults, or
/// takes over the shape of its operand; those that are not in the registry.
const WITHOUT: &[&str] = &[
    "batch_norm_inference",
    "contiguous",
    "debug_print",
    "full_like",
    "into_add",
    "into_affine",
    "into_div",
    "into_index_add",
    "into_mul",
    "into_relu",
    "into_scatter_add",
    "into_sub",
    "mean_sparse_cross_entropy_ignoring",
    "ones_like",
    "std_corrected",
    "std_corrected_keepdims",
    "sum_to",
    "to_device",
    "var_corrected",
    "var_corrected_keepdims",
    "zeros_like",
];

/// Whether a method has an example, also one that a macro makes.
fn has_example(method: &str) -> bool {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/examples/{method}.md")).exists()
}

/// What stands above each public method of a tensor that is written out below `folder`, by the method's name.
fn methods(folder: &str) -> io::Result<BTreeMap<String, String>> {
    let mut methods = BTreeMap::new();
    for text in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))? {
        for block in text.split("\nimpl Tensor {\n").skip(1) {
            let block = block.split("\n}\n").next().unwrap_or_default();
            for item in block.split("\n\n") {
                if let Some((attributes, function)) = item.split_once("    pub fn ") {
                    let name = function.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    methods.insert(name, attributes.to_owned());
                }
            }
        }
    }
    Ok(methods)
}

#[test]
fn every_public_op_has_an_example() -> io::Result<()> {
    let mut missing = Vec::new();
    for (name, attributes) in methods("src/ops")? {
        let is_shown = has_example(&name) && attributes.contains(&format!("#[doc = example!(\"{name}\")]"));
        if !is_shown && !WITHOUT.contains(&name.as_str()) {
            missing.push(name);
        }
    }
    assert!(missing.is_empty(), "these methods show no example: {missing:?}");
    for name in WITHOUT {
        assert!(!has_example(name), "`{name}` has an example and needs no exception");
    }
    Ok(())
}

/// The function that PyTorch's expression calls, if the expression is one call of it.
fn torch_name(expression: &str) -> Option<&str> {
    let called = ["torch.", "F.", "x0."].iter().find_map(|prefix| expression.strip_prefix(prefix))?;
    let (name, arguments) = called.split_once('(')?;
    let mut depth = 1;
    let end = arguments.char_indices().find_map(|(at, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (depth == 0).then_some(at)
    })?;
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    (is_name && end + 1 == arguments.len()).then_some(name)
}

/// The method that a user's expression calls, if the expression is one call of it.
fn method_name(expression: &str) -> Option<&str> {
    let called = expression.rsplit("; ").next().filter(|called| !called.contains('?'))?;
    let called = called.split_once(" = ").map_or(called, |(_, call)| call);
    let called = called.strip_prefix("x0.").or(called.strip_prefix("Tensor::"))?;
    called.split_once('(').map(|(name, _)| name)
}

#[test]
fn methods_are_found_under_the_names_that_pytorch_has_for_them() -> io::Result<()> {
    let (methods, rows) =
        (methods("src")?, sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops"))?.concat());
    // A method that a macro makes has its aliases in the macro's row, which names it.
    let row_has = |name: &str, alias: &str| {
        rows.split("\n\n").flat_map(|item| item.split(";\n")).any(|row| {
            row.contains(&format!(" {name},"))
                && row.contains(&format!("\"{alias}\""))
                && !row.contains("pub fn")
        })
    };
    let mut missing = Vec::new();
    let mut n_compared = 0;
    for sample in registry().into_iter().chain(composed()).flat_map(|op| (op.samples)()) {
        let (Some(torch), Some(example)) = (&sample.torch, &sample.example) else { continue };
        let (Some(torch), Some(name)) = (torch_name(torch), method_name(example)) else { continue };
        n_compared += 1;
        let has = |attributes: &String| attributes.contains(&format!("\"{torch}\""));
        // A name that a method has here, too, leads to that one.
        let is_known = has_example(torch)
            || methods.contains_key(torch)
            || name.strip_suffix("_keepdims") == Some(torch);
        if torch != name && !is_known && !methods.get(name).is_some_and(has) && !row_has(name, torch) {
            missing.push(format!("{name} needs #[doc(alias = \"{torch}\")]"));
        }
    }
    missing.sort();
    missing.dedup();
    assert!(n_compared > 100, "only {n_compared} samples were compared");
    assert!(missing.is_empty(), "{missing:#?}");
    Ok(())
}
