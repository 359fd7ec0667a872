//! Values that are offloaded while a step has no room for them: the plan of such a run is the run, to the byte, and a disk that
//! fails in the middle of a step ends that step and nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_memory::testing::{Fail, fail_spilling};
use plimsoll_nn::plan::{least_limit, plan};
use plimsoll_nn::train::{Batch, Trainer, Until};
use plimsoll_tensor::{Bytes, Error, ErrorKind, Generator, Offload, Result};

use crate::models::LSTM;
use crate::run::{device, state};

/// A folder of its own on a disk.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("offload-{name}"));
    fs::create_dir_all(&path).expect("the folder for temporary files can be written");
    path
}

/// A run of six epochs.
fn run() -> Result<()> {
    let data = LSTM.batches()?;
    LSTM.trainer()?.fit(&data, Until::Epochs(6)).map(drop)
}

#[test]
fn the_plan_of_a_run_that_moves_values_is_the_run() -> Result<()> {
    let device = device();
    let without = least_limit(&device, run)?;
    device.set_offload(Some(&Offload::Folder(folder("planned"))))?;
    let least = least_limit(&device, run)?;
    assert!(least <= without, "{least} with a place to move to, and {without} without");
    device.set_limit(Some(Bytes::new(least)))?;
    let planned = plan(&device, run)?;
    assert!(planned.fits() && planned.offloaded_bytes > 0, "{planned}");
    let _on = device.enter();
    run()?;
    let stats = device.stats();
    assert_eq!((planned.peak_bytes, planned.committed_bytes), (stats.peak_in_use, stats.peak_committed));
    assert_eq!((planned.offloaded_bytes, planned.repeated), (device.offloaded().get(), device.recomputed()));
    Ok(())
}

/// Goes on to a step; the bits of its loss.
fn loss(trainer: &mut Trainer, data: &Vec<Batch>, step: u64) -> Result<u64> {
    Ok(trainer.fit(data, Until::Steps(step))?.loss.unwrap_or(f64::NAN).to_bits())
}

/// What the error of a failed step says was attempted: `written` or `read back`.
fn attempted(error: &Error, folder: &Path) -> &'static str {
    let text = error.to_string();
    assert!(matches!(error.kind(), ErrorKind::Io { .. }), "{text}");
    assert!(text.contains(&folder.display().to_string()), "{text}");
    let words = ["written", "read back"].map(|word| (word, text.contains(word)));
    words.into_iter().find(|(_, said)| *said).unwrap_or_else(|| panic!("{text}")).0
}

#[test]
fn each_read_and_write_of_a_step_may_fail() -> Result<()> {
    const MOST: u64 = 200;
    let data = || Ok::<_, Error>(vec![LSTM.batches()?.swap_remove(0)]);
    let expected: Vec<u64> = {
        let device = device();
        let _on = device.enter();
        let (data, mut trainer) = (data()?, LSTM.trainer()?);
        (1..=MOST).map(|step| loss(&mut trainer, &data, step)).collect::<Result<_>>()?
    };
    let (device, folder) = (device(), folder("failing"));
    device.set_offload(Some(&Offload::Folder(folder.clone())))?;
    let least = least_limit(&device, || LSTM.trainer()?.fit(&data()?, Until::Steps(3)).map(drop))?;
    device.set_limit(Some(Bytes::new(least)))?;
    let _on = device.enter();
    let (data, mut trainer) = (data()?, LSTM.trainer()?);
    assert_eq!(loss(&mut trainer, &data, 1)?, expected[0]);
    let mut failed: Vec<&str> = Vec::new();
    for step in 2..MOST {
        let before = (state(&trainer)?, Generator::current(), device.stats().in_use);
        fail_spilling(&folder, Fail::Nth(step - 1));
        let outcome = loss(&mut trainer, &data, step);
        fail_spilling(&folder, Fail::Never);
        assert_eq!(device.pool().verify(), Ok(()));
        match outcome {
            Ok(bits) => {
                // The step reads and writes less often than that.
                assert_eq!(bits, expected[step as usize - 1], "step {step}");
                assert!(failed.contains(&"written") && failed.contains(&"read back"), "{failed:?}");
                assert_eq!(fs::read_dir(&folder).expect("the folder is there").count(), 0);
                return Ok(());
            }
            Err(error) => failed.push(attempted(&error, &folder)),
        }
        let after = (state(&trainer)?, Generator::current(), device.stats().in_use);
        assert_eq!(after, before, "step {step}: a step that failed changed something");
        assert_eq!(loss(&mut trainer, &data, step)?, expected[step as usize - 1], "step {step}");
    }
    panic!("a step reads and writes at most {MOST} times");
}
