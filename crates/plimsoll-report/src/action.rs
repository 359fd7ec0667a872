//! What would help: something to do about the peak, as a profile lists it.

use serde_json::{Value, json};

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// These options of the program.
    Options(String),
    /// A change of the code, and where.
    Code(String),
}

impl Advice {
    /// What is to be written.
    pub fn text(&self) -> &str {
        let (Advice::Options(text) | Advice::Code(text)) = self;
        text
    }
}

/// Something to do about the peak, as whoever recorded the profile has planned it.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// What to write.
    pub advice: Advice,
    /// By so much the peak is lower.
    pub saved_bytes: u64,
    /// The most bytes in use at a time then.
    pub peak_bytes: u64,
    /// By so much a step takes longer, by formula; less than zero if it is faster.
    pub more_ms: f64,
}

impl Action {
    /// Actions as a profile has them, for [`Profiler::add`](crate::Profiler::add): with the peak and the time of a step without
    /// any of them, the seconds after which no other was tried, and whether all were.
    pub fn to_json(
        actions: &[Action],
        peak_bytes: u64,
        step_ms: f64,
        budget_s: u64,
        is_complete: bool,
    ) -> Value {
        let row = |action: &Action| {
            let Action { advice, saved_bytes, peak_bytes, more_ms } = action;
            let kind = if matches!(advice, Advice::Options(_)) { "options" } else { "code" };
            json!({
                kind: advice.text(),
                "saved_bytes": saved_bytes,
                "peak_bytes": peak_bytes,
                "step_ms": step_ms + more_ms,
                "more_ms": more_ms,
            })
        };
        let rows: Vec<Value> = actions.iter().map(row).collect();
        json!({ "actions": {
            "version": 1, "budget_s": budget_s, "is_complete": is_complete, "peak_bytes": peak_bytes, "step_ms": step_ms, "rows": rows,
        } })
    }

    /// The actions that a profile lists, in a form that is known.
    pub fn listed(about: &Value) -> Vec<Action> {
        let actions = &about["actions"];
        let known = actions["rows"].as_array().filter(|_| actions["version"] == 1);
        let action = |row: &Value| {
            let text = |kind: &str| row[kind].as_str().map(str::to_owned);
            Some(Action {
                advice: text("options").map(Advice::Options).or(text("code").map(Advice::Code))?,
                saved_bytes: row["saved_bytes"].as_u64()?,
                peak_bytes: row["peak_bytes"].as_u64()?,
                more_ms: row["more_ms"].as_f64()?,
            })
        };
        known.into_iter().flatten().filter_map(action).collect()
    }
}
