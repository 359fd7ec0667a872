//! A plan is small, whatever it plans: for every recipe the process stays under 300 MiB, as the system counts it.
//!
//! One test in a process of its own, because the peak belongs to the process.

use plimsoll_cli::{Failure, recipes, run};
use plimsoll_testkit::ProcessMemory;

#[test]
fn no_plan_takes_more_than_300_mib() -> Result<(), Failure> {
    let shipped = recipes::all();
    for recipe in &shipped {
        for device in [["--device", "cpu"], ["--as", "h200"]] {
            let arguments = ["plimsoll", "plan", recipe.name(), "--data", "random", "--limit", "none"];
            run(&shipped, arguments.into_iter().chain(device))?;
            let memory = ProcessMemory::now().map_err(|error| Failure::other(error.to_string()))?;
            let mib = memory.peak_resident >> 20;
            assert!(mib < 300, "{} {device:?}: {mib} MiB were resident", recipe.name());
        }
    }
    Ok(())
}
