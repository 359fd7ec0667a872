//! `Tensor` has no type parameters.
//!
//! Dtype, rank and device are values at run time. A parameter on this one type would spread to every layer, model and
//! program that holds a tensor.

use super::Finding;
use super::repo::Repo;

/// The crate that defines the type.
const HOME: &str = "plimsoll-tensor";

/// Reports a `Tensor` with parameters, and a `Tensor` that is nowhere to be found.
pub fn check(repo: &Repo) -> Vec<Finding> {
    let mut definitions = 0;
    let mut findings = Vec::new();
    for source in repo.sources.iter().filter(|source| Repo::crate_of(&source.path) == Some(HOME)) {
        let words: Vec<(usize, &str)> = source.words().collect();
        for window in words.windows(3) {
            let [(_, "pub"), (_, "struct"), (offset, "Tensor")] = *window else { continue };
            definitions += 1;
            if source.code[offset + "Tensor".len()..].trim_start().starts_with('<') {
                let message = "`Tensor` has parameters: dtype, rank and device are values at run time";
                findings.push(Finding::failure(&source.path, source.line_of(offset), message));
            }
        }
    }
    if definitions == 0 {
        let message = format!("no `pub struct Tensor` in {HOME}: the rule on its parameters checks nothing");
        findings.push(Finding::failure(&format!("crates/{HOME}/src/lib.rs"), 1, message));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let repo = Repo::of(&[("crates/plimsoll-tensor/src/eager/tensor.rs", text)]);
        check(&repo).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_plain_tensor_passes() {
        assert_eq!(
            messages("/// Data.\npub struct Tensor {\n}\npub struct TensorRef<'a>(&'a u8);\n"),
            [] as [&str; 0]
        );
        assert_eq!(messages("pub struct Tensor(Inner<u8>);\n"), [] as [&str; 0]);
    }

    #[test]
    fn parameters_and_absence_are_reported() {
        assert!(messages("pub struct Tensor<T> {}\n")[0].contains("has parameters"));
        assert!(messages("// pub struct Tensor;\n")[0].contains("no `pub struct Tensor`"));
    }
}
