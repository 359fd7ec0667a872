//! Profiles: what is known of a model of GPU without asking one.
//!
//! Ghost and real runs read the same profile, so that a machine without the GPU predicts the bytes of one that has it.
//! Every choice of a kernel that depends on the device depends on its profile alone. A profile is a small file with a
//! version, shipped for some models (`profiles/`), written by `plimsoll devices --json` for those of a machine, and read from
//! anywhere. Nothing in it is measured during a run.
//!
//! Bytes are exact; rates are those of the makers' data sheets and serve to predict how long something takes, never to
//! decide what is computed.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};

/// The form of a profile's file; a reader refuses another.
const VERSION: u32 = 1;

/// The most that a file with a profile can have; what a machine says of sixteen GPUs is a fraction of it.
const MOST_BYTES: usize = 1 << 20;

/// The models that are known: the short name, and the file.
const SHIPPED: [(&str, &str); 6] = [
    ("h200", include_str!("../profiles/h200.json")),
    ("h100", include_str!("../profiles/h100.json")),
    ("a100-80", include_str!("../profiles/a100-80.json")),
    ("a100-40", include_str!("../profiles/a100-40.json")),
    ("rtx4090", include_str!("../profiles/rtx4090.json")),
    ("t4", include_str!("../profiles/t4.json")),
];

/// A model of GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The version of this form.
    pub version: u32,
    /// The model, as the driver names it.
    pub name: String,
    /// The architecture for which kernels are compiled: 90 for compute capability 9.0.
    pub architecture: u32,
    /// The number of multiprocessors.
    pub n_multiprocessors: u32,
    /// The memory in bytes.
    pub memory_bytes: u64,
    /// What a plan leaves to the driver, its context, kernels and libraries: an estimate from above, in bytes.
    pub outside_bytes: u64,
    /// The unit in which pages are committed, in bytes.
    pub granule: u64,
    /// The shared memory that a block may take, in bytes.
    pub shared_bytes_per_block: u32,
    /// The most that a matrix product may take as scratch memory.
    pub matmul_workspace: usize,
    /// The most that a convolution may take as scratch memory.
    pub convolution_workspace: usize,
    /// The most that a launch of an executable graph takes of the GPU's memory, in bytes,
    #[serde(default = "graph_launch_bytes")]
    pub graph_launch_bytes: usize,
    /// the unit in which the driver takes it,
    #[serde(default = "graph_granule")]
    pub graph_granule: u64,
    /// and the most that is set aside for all executables of a device.
    #[serde(default = "graph_bytes")]
    pub graph_bytes: u64,
    /// The most that a communicator between GPUs takes of the memory of each, in bytes,
    #[serde(default = "communicator_bytes")]
    pub communicator_bytes: u64,
    /// and how many GPUs a machine has that are linked with each other.
    #[serde(default = "gpus_per_machine")]
    pub gpus_per_machine: u32,
    /// How fast it is.
    pub rates: Rates,
    /// Where the figures come from.
    pub source: String,
}

/// What profiles say that were written before graphs: 1.0 to 1.7 KiB were measured on an H200.
fn graph_launch_bytes() -> usize {
    2048
}

/// As measured on an H200, too.
fn graph_granule() -> u64 {
    2 << 20
}

/// Some 15,000 launches, which is several executables of the largest programs here.
fn graph_bytes() -> u64 {
    32 << 20
}

/// What profiles say that were written before communicators: an estimate from above for few channels.
fn communicator_bytes() -> u64 {
    512 << 20
}

fn gpus_per_machine() -> u32 {
    8
}

/// A network of 100 Gbit/s.
fn network_bytes_per_second() -> u64 {
    12_500_000_000
}

/// How fast a GPU is at most: operations and bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Operations on float64.
    pub float64: u64,
    /// Operations on float32.
    pub float32: u64,
    /// Products of float32 rounded to TF32.
    pub tf32: u64,
    /// Products of float16, added up in float32.
    pub float16: u64,
    /// Products of bfloat16, added up in float32.
    pub bfloat16: u64,
    /// Bytes read or written in its own memory.
    pub memory_bytes_per_second: u64,
    /// Bytes that come from the host or go there.
    pub link_bytes_per_second: u64,
    /// Bytes that go to another GPU of the machine, or come from there; 0 if they pass through the host.
    #[serde(default)]
    pub peer_bytes_per_second: u64,
    /// Bytes that go to a GPU of another machine, or come from there.
    #[serde(default = "network_bytes_per_second")]
    pub network_bytes_per_second: u64,
    /// What each kernel takes beside its work.
    pub launch_nanoseconds: u64,
}

impl Profile {
    /// The bytes that go from one of so many ranks to another in a second, each on a GPU of its own.
    pub fn bytes_per_second_between(&self, n_ranks: usize) -> u64 {
        match (n_ranks <= self.gpus_per_machine as usize, self.rates.peer_bytes_per_second) {
            (true, 0) => self.rates.link_bytes_per_second,
            (true, rate) => rate,
            (false, _) => self.rates.network_bytes_per_second,
        }
    }

    /// The most launches that executables may have for so many bytes that are set aside for them.
    pub fn graph_launches(&self, bytes: u64) -> usize {
        (bytes.saturating_sub(self.graph_granule) / self.graph_launch_bytes.max(1) as u64) as usize
    }

    /// The most bytes that the driver has taken for executables that had so many launches at a time.
    pub fn graph_bytes_for(&self, n_launches: usize) -> u64 {
        ((n_launches * self.graph_launch_bytes) as u64).next_multiple_of(self.graph_granule.max(1))
    }

    /// The short names of the models that are known.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(short, _)| *short)
    }

    /// The profile of a model by its short name, such as `h200`.
    pub fn named(short: &str) -> Option<Profile> {
        let (_, text) = SHIPPED.iter().find(|(known, _)| *known == short)?;
        Some(Profile::shipped(text))
    }

    /// The profile of a model by the name that the driver has for it, if there is one.
    pub fn of_model(name: &str) -> Option<Profile> {
        SHIPPED.iter().map(|(_, text)| Profile::shipped(text)).find(|profile| profile.name == name)
    }

    /// An NVIDIA H200.
    pub fn h200() -> Profile {
        Profile::shipped(SHIPPED[0].1)
    }

    fn shipped(text: &str) -> Profile {
        Profile::parse(text).expect("a test reads every shipped profile")
    }

    /// The profile of a file: one such as those that are shipped, or what `plimsoll devices --json` wrote, of which it is the
    /// first GPU's.
    ///
    /// # Errors
    /// A file that cannot be read, or holds no profile of this version.
    pub fn read(path: &Path) -> Result<Profile> {
        let said = |detail: String| Error::new(format!("{}: {detail}", path.display()));
        let text = plimsoll_file::read_small(path, MOST_BYTES).map_err(|error| said(error.to_string()))?;
        let text = String::from_utf8(text).map_err(|_| said("it is no text".to_owned()))?;
        // What a machine says of itself has more in it than one profile.
        let machine = serde_json::from_str(&text).ok().and_then(|machine: Value| {
            let profile = machine.get("gpus")?.get(0)?.get("profile")?;
            Some(profile.to_string())
        });
        Profile::parse(&machine.unwrap_or(text))
            .map_err(|error| said(format!("it is no device profile: {error}")))
    }

    /// The profile that a text describes.
    ///
    /// # Errors
    /// Another version; a field that is missing, unknown or impossible.
    pub fn parse(text: &str) -> Result<Profile> {
        let profile: Profile = serde_json::from_str(text).map_err(|error| Error::new(error.to_string()))?;
        let rates = profile.rates;
        let fastest = [rates.float64, rates.float32, rates.tf32, rates.float16, rates.bfloat16];
        let rates =
            [rates.memory_bytes_per_second, rates.link_bytes_per_second, rates.network_bytes_per_second];
        if profile.version != VERSION {
            return Err(Error::new(format!(
                "it is of version {}, and this program reads {VERSION}",
                profile.version
            )));
        }
        if fastest.iter().chain(&rates).any(|&rate| rate == 0) {
            return Err(Error::new("a rate is zero; each is a number of operations or bytes per second"));
        }
        if !profile.granule.is_power_of_two() || profile.memory_bytes < profile.outside_bytes {
            return Err(Error::new(
                "the granule must be a power of two, and there must be more memory than lies outside the pool",
            ));
        }
        Ok(profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_profile_is_read_and_found_by_both_names() {
        for (short, text) in SHIPPED {
            let profile = Profile::parse(text).expect(short);
            assert_eq!(Profile::named(short).as_ref(), Some(&profile));
            assert_eq!(Profile::of_model(&profile.name).as_ref(), Some(&profile));
            let again = serde_json::to_string(&profile).expect("plain data");
            assert_eq!(Profile::parse(&again).expect("what was written"), profile);
        }
        assert_eq!(Profile::h200().name, "NVIDIA H200");
        assert_eq!(Profile::names().count(), SHIPPED.len());
        assert_eq!((Profile::named("h3"), Profile::of_model("h200")), (None, None));
    }

    #[test]
    fn ranks_of_one_machine_are_linked_and_others_have_a_network() {
        let h100 = Profile::named("h100").expect("it is shipped");
        let rates = [8, 9].map(|n_ranks| h100.bytes_per_second_between(n_ranks));
        assert_eq!(rates, [450_000_000_000, 50_000_000_000]);
        let t4 = Profile::named("t4").expect("it is shipped");
        assert_eq!(t4.bytes_per_second_between(2), t4.rates.link_bytes_per_second);
    }

    #[test]
    fn what_is_no_profile_is_refused_with_the_reason() {
        let text = SHIPPED[0].1;
        for (from, to, reason) in [
            ("\"version\": 1", "\"version\": 2", "version 2"),
            ("\"granule\": 2097152", "\"granule\": 3", "power of two"),
            ("\"float64\": 34000000000000", "\"float64\": 0", "zero"),
            ("\"memory_bytes\"", "\"memory\"", "unknown field"),
            ("\"name\": \"NVIDIA H200\",", "", "missing field"),
            ("{", "", "line 2"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            let error = Profile::parse(&changed).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error}");
        }
        let folder = tempfile::tempdir().expect("temporary folders can be made");
        let path = folder.path().join("machine.json");
        let machine =
            format!("{{\"device\": \"cpu\", \"gpus\": [{{\"device\": \"cuda:0\", \"profile\": {text}}}]}}");
        std::fs::write(&path, machine).expect("temporary files can be written");
        assert_eq!(Profile::read(&path).expect("the GPU's"), Profile::h200());
        let error = Profile::read(Path::new("no-such-profile")).expect_err("no file").to_string();
        assert!(error.contains("no-such-profile"), "{error}");
    }
}
