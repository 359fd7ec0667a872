//! What this machine has: memory, as the container and the system see it, cores, and the process's own figures.
//!
//! Everything is read from `/proc` and the control groups' files. Where a figure is not shown, the answer is `None`,
//! never a guess.

use std::fs;
use std::path::Path;

/// The memory of the host in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// What there is: the machine's memory, or the container's limit where that is less.
    pub total: u64,
    /// What this process can still take.
    pub free: u64,
}

impl HostMemory {
    /// The memory of this machine now.
    pub fn now() -> Option<HostMemory> {
        let info = fs::read_to_string("/proc/meminfo").ok()?;
        let (total, available) = (kib_field(&info, "MemTotal")?, kib_field(&info, "MemAvailable")?);
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let container = container(Path::new("/sys/fs/cgroup"), &groups);
        Some(match container {
            Some(group) => {
                HostMemory { total: total.min(group.limit), free: available.min(group.limit - group.held) }
            }
            None => HostMemory { total, free: available },
        })
    }

    /// The limit that a run gets when none is asked for: what is free, less 5 % for what lies outside the pool.
    pub fn default_limit(&self) -> u64 {
        self.free - self.free / 20
    }
}

/// The tightest of the control groups that this process is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    limit: u64,
    /// What cannot be taken from it any more; files that are only cached can.
    held: u64,
}

/// Walks from the process's group up to the root and finds the one with the least left; `root` is where the groups are
/// mounted, `groups` what `/proc/self/cgroup` says.
fn container(root: &Path, groups: &str) -> Option<Group> {
    let unified = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let old = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        fields.next()?.split(',').any(|controller| controller == "memory").then(|| fields.next())?
    });
    let (base, inside, names) = match (old, unified) {
        (Some(inside), _) => {
            (root.join("memory"), inside, ["memory.limit_in_bytes", "memory.usage_in_bytes"])
        }
        (None, Some(inside)) => (root.to_owned(), inside, ["memory.max", "memory.current"]),
        (None, None) => return None,
    };
    let folder = base.join(inside.trim_start_matches('/'));
    let ancestors = folder.ancestors().take_while(|path| path.starts_with(&base));
    ancestors.filter_map(|path| group(path, names)).min_by_key(|group| group.limit - group.held)
}

fn group(folder: &Path, [limit, current]: [&str; 2]) -> Option<Group> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // A group without a limit says `max`, or in the older form a number that no machine has.
    let limit = number(limit).filter(|&limit| limit < 1 << 60)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = ["inactive_file ", "active_file "]
        .iter()
        .map(|name| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0));
    let held = number(current).unwrap_or(0).saturating_sub(cached.sum());
    Some(Group { limit, held: held.min(limit) })
}

/// A field of a file with lines such as `VmRSS:  2048 kB`, in bytes.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// The process's memory as the system sees it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// What is resident now.
    pub now: u64,
    /// The most that was resident.
    pub peak: u64,
    /// The part of `now` that holds pages of files, such as code.
    pub file: u64,
}

impl Resident {
    /// The figures of this process now.
    pub fn now() -> Option<Resident> {
        Resident::parse(&fs::read_to_string("/proc/self/status").ok()?)
    }

    fn parse(status: &str) -> Option<Resident> {
        let field = |name| kib_field(status, name);
        Some(Resident { now: field("VmRSS")?, peak: field("VmHWM")?, file: field("RssFile")? })
    }

    /// Lets the peak begin anew from what is resident now. Where the system does not allow it, the peak stays.
    pub fn forget_peak() {
        // The file is there to be written; a system without it keeps the peak of the whole run, which is no less.
        let _unchanged = fs::write("/proc/self/clear_refs", "5");
    }

    /// The most anonymous memory since `base`: how far the peak lies above it, less the pages of files read since.
    pub fn peak_anonymous_since(&self, base: &Resident) -> u64 {
        self.peak.saturating_sub(base.now).saturating_sub(self.file.saturating_sub(base.file))
    }
}

/// The name of the processor, where the system reports it.
pub fn processor() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::io;

    use tempfile::{TempDir, tempdir};

    use super::*;

    fn write(folder: &TempDir, path: &str, text: &str) -> io::Result<()> {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("inside the folder"))?;
        fs::write(path, text)
    }

    #[test]
    fn the_tightest_group_on_the_way_up_counts() -> io::Result<()> {
        let folder = tempdir()?;
        write(&folder, "a/memory.max", "9000\n")?;
        write(&folder, "a/memory.current", "5000\n")?;
        write(&folder, "a/memory.stat", "anon 1\ninactive_file 1000\nactive_file 500\n")?;
        write(&folder, "a/b/memory.max", "max\n")?;
        write(&folder, "a/b/memory.current", "10\n")?;
        assert_eq!(container(folder.path(), "0::/a/b\n"), Some(Group { limit: 9000, held: 3500 }));
        assert_eq!(container(folder.path(), "0::/\n"), None);
        Ok(())
    }

    #[test]
    fn the_older_form_is_read_too() -> io::Result<()> {
        let folder = tempdir()?;
        write(&folder, "memory/x/memory.limit_in_bytes", "7000\n")?;
        write(&folder, "memory/x/memory.usage_in_bytes", "6000\n")?;
        write(&folder, "memory/memory.limit_in_bytes", "9223372036854771712\n")?;
        let groups = "5:cpu,cpuacct:/x\n4:memory:/x\n0::/y\n";
        assert_eq!(container(folder.path(), groups), Some(Group { limit: 7000, held: 6000 }));
        Ok(())
    }

    #[test]
    fn this_machine_has_memory_and_keeps_five_percent() {
        let memory = HostMemory::now().expect("Linux reports it");
        assert!(0 < memory.free && memory.free <= memory.total, "{memory:?}");
        assert_eq!(HostMemory { total: 4000, free: 2000 }.default_limit(), 1900);
    }

    #[test]
    fn pages_of_files_do_not_count_as_anonymous() {
        let status = "VmHWM:\t    90 kB\nVmRSS:\t 50 kB\nRssFile:\t 20 kB\n";
        let later = Resident::parse(status).expect("all three fields");
        let base = Resident { now: 30 << 10, peak: 30 << 10, file: 15 << 10 };
        assert_eq!(later.peak_anonymous_since(&base), (90 - 30 - 5) << 10);
    }
}
