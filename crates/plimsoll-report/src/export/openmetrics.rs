//! Gauges for Prometheus and whoever reads OpenMetrics: the peak by owner, committed, predicted, limit, what is in use at the end.

use std::fmt::Write;
use std::io;

use serde_json::Value;

use crate::explain::Explanation;
use crate::page::encode::shown;
use crate::profile::Profile;

/// A profile as such a text.
pub(super) fn text(profile: &Profile) -> io::Result<String> {
    let explanation = Explanation::of(profile)?;
    let about = |key: &str| profile.about().get(key);
    let labels: Vec<String> = ["recipe", "device"]
        .into_iter()
        .filter_map(|key| Some(format!("{key}=\"{}\"", escaped(about(key)?.as_str()?))))
        .collect();
    let labels = labels.join(",");
    let mut out = String::new();
    let owners: Vec<(String, u64)> = explanation
        .owners()
        .iter()
        .map(|(owner, bytes)| (with(&labels, &format!("owner=\"{owner}\"")), bytes))
        .collect();
    family(&mut out, "peak_owner", "Bytes in use at the peak by owner; they add up to the peak.", &owners);
    let number = |value: Option<&Value>| value.and_then(Value::as_u64);
    let rows = [
        ("peak", "The most bytes in use at a time.", Some(explanation.peak.in_use)),
        ("peak_committed", "The most bytes committed.", Some(explanation.peak_committed)),
        ("predicted_peak", "The peak that was predicted.", number(about("predicted_peak_bytes"))),
        ("limit", "The limit on committed bytes.", number(about("limit_bytes"))),
        (
            "end_in_use",
            "Bytes in use when the recording ended.",
            number(profile.end().and_then(|end| end.get("in_use"))),
        ),
        (
            "growth_per_step",
            "Bytes that lines leave behind at each step.",
            Some(explanation.growth.iter().map(|row| row.per_step).sum()),
        ),
    ];
    for (name, help, value) in rows {
        let values: Vec<(String, u64)> = value.into_iter().map(|value| (with(&labels, ""), value)).collect();
        family(&mut out, name, help, &values);
    }
    out.push_str("# EOF\n");
    Ok(out)
}

/// A gauge of bytes with its values, if there are any.
fn family(out: &mut String, name: &str, help: &str, values: &[(String, u64)]) {
    if values.is_empty() {
        return;
    }
    let name = format!("plimsoll_memory_{name}_bytes");
    // Writing into a string cannot fail.
    let _always = writeln!(out, "# TYPE {name} gauge\n# UNIT {name} bytes\n# HELP {name} {help}");
    for (labels, value) in values {
        let _always = writeln!(out, "{name}{labels} {value}");
    }
}

fn with(labels: &str, more: &str) -> String {
    match [labels, more].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",") {
        none if none.is_empty() => none,
        some => format!("{{{some}}}"),
    }
}

fn escaped(text: &str) -> String {
    shown(text).replace('\\', "\\\\").replace('"', "\\\"")
}
