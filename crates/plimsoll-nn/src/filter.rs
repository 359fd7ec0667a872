//! Which variables are meant: by the names of variables or layers, by patterns, or by a function of the name.

use std::fmt;
use std::sync::Arc;

/// Some of a model's variables, by their names: `"bias"` means all of that last name, `"encoder"` all of a layer, and a `*`
/// stands for any part of a name, as in `"encoder.*.kernel"`. A list means those that any of its entries means.
#[derive(Clone)]
pub struct VariableFilter(Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl VariableFilter {
    /// The variables whose name a function says yes to.
    pub fn new(f: impl Fn(&str) -> bool + Send + Sync + 'static) -> VariableFilter {
        VariableFilter(Arc::new(f))
    }

    /// Whether a variable of that name is meant.
    pub fn matches(&self, name: &str) -> bool {
        (self.0)(name)
    }
}

impl From<&str> for VariableFilter {
    fn from(pattern: &str) -> VariableFilter {
        let pattern = pattern.to_owned();
        VariableFilter::new(move |name| is_meant(&pattern, name))
    }
}

impl<const N: usize> From<[&str; N]> for VariableFilter {
    fn from(patterns: [&str; N]) -> VariableFilter {
        let patterns = patterns.map(str::to_owned);
        VariableFilter::new(move |name| patterns.iter().any(|pattern| is_meant(pattern, name)))
    }
}

impl fmt::Debug for VariableFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VariableFilter")
    }
}

fn is_meant(pattern: &str, name: &str) -> bool {
    if pattern.contains('*') {
        return is_like(pattern, name);
    }
    let last = name.rsplit('.').next();
    let is_inside = name.strip_prefix(pattern).is_some_and(|rest| rest.starts_with('.'));
    name == pattern || last == Some(pattern) || is_inside
}

/// Whether a name is the pattern's parts with anything where its stars are.
fn is_like(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_layers_and_patterns_mean_variables() {
        let means = |pattern: &str, name: &str| VariableFilter::from(pattern).matches(name);
        assert!(
            means("bias", "encoder.dense.bias") && means("bias", "bias") && !means("bias", "dense.bias_1")
        );
        assert!(means("encoder", "encoder.dense.bias") && !means("encoder", "encoder_1.bias"));
        assert!(
            means("encoder.dense", "encoder.dense.bias") && means("encoder.dense.bias", "encoder.dense.bias")
        );
        assert!(
            means("encoder.*.kernel", "encoder.dense.qkv.kernel")
                && !means("encoder.*.kernel", "encoder.kernel")
        );
        assert!(means("*norm*", "block_1.layer_norm.gamma") && means("*", "x") && !means("a*b*c", "a.c.b"));
        let list = VariableFilter::from(["gamma", "beta"]);
        assert!(list.matches("norm.beta") && !list.matches("norm.bias"));
        assert!(VariableFilter::new(|name| name.len() > 3).matches("bias"));
    }
}
