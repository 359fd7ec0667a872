//! Fields of JSON lines. The lines are our own program's, flat but for a few objects, so that a search is enough; a parser would
//! be the only dependency here.

/// What stands after `"name":` in a JSON line, up to the next comma.
pub fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let rest = line.split_once(&format!("\"{name}\":"))?.1;
    rest.split([',', '}']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_from_a_line() {
        let line = r#"{"event":"plan","batch":118,"fits":true}"#;
        assert_eq!(field(line, "batch"), Some("118"));
        assert_eq!(field(line, "fits"), Some("true"));
        assert_eq!(field(line, "none"), None);
    }
}
