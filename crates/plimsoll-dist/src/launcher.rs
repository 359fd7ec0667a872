//! Who started this process, and as which rank: told by environment variables.

/// This process among those that were started together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Who started it.
    pub by: &'static str,
    /// Its number.
    pub rank: usize,
    /// How many processes there are.
    pub size: usize,
    /// Its number among those of its machine, if that is known.
    pub local_rank: Option<usize>,
    /// How many of them are on its machine, if that is known.
    pub local_size: Option<usize>,
}

/// The variables of a launcher: rank and size, among all processes and among those of the machine.
struct Variables {
    by: &'static str,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

/// The first that has set its variables counts. A job of Slurm may start mpirun, which then knows better, so Slurm is last.
const LAUNCHERS: [Variables; 4] = [
    Variables {
        by: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_size: "LOCAL_WORLD_SIZE",
    },
    Variables {
        by: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Variables {
        by: "PMI",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
    },
    Variables {
        by: "Slurm",
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_NTASKS_PER_NODE",
    },
];

/// Who started this process, if it was started together with others.
pub fn launched() -> Option<Launch> {
    launched_by(|name| std::env::var(name).ok())
}

fn launched_by(variable: impl Fn(&str) -> Option<String>) -> Option<Launch> {
    let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
    LAUNCHERS.iter().find_map(|launcher| {
        let (rank, size) = (number(launcher.rank)?, number(launcher.size)?);
        let (local_rank, local_size) = (number(launcher.local_rank), number(launcher.local_size));
        let launch = Launch { by: launcher.by, rank, size, local_rank, local_size };
        (rank < size).then_some(launch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among(variables: &[(&str, &str)]) -> Option<Launch> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        launched_by(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_first_launcher_counts() {
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_LOCALID", "0")];
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert_eq!(among(&slurm).map(|launch| (launch.by, launch.rank, launch.size)), Some(("Slurm", 0, 1)));
        let launch = among(&[&slurm[..], &open_mpi].concat());
        assert_eq!(
            launch,
            Some(Launch { by: "Open MPI", rank: 3, size: 4, local_rank: None, local_size: None })
        );
        let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
        let launch = Launch { by: "PMI", rank: 1, size: 2, local_rank: Some(1), local_size: Some(2) };
        assert_eq!(among(&pmi), Some(launch));
        let torchrun = [("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")];
        let launch = among(&[&pmi[..], &torchrun].concat());
        let torchrun = Launch { by: "torchrun", rank: 5, size: 8, local_rank: Some(1), local_size: None };
        assert_eq!(launch, Some(torchrun));
    }

    #[test]
    fn what_makes_no_sense_is_nobody() {
        assert_eq!(among(&[]), None);
        assert_eq!(among(&[("RANK", "1")]), None);
        assert_eq!(among(&[("RANK", "4"), ("WORLD_SIZE", "4")]), None);
        assert_eq!(among(&[("RANK", "x"), ("WORLD_SIZE", "4")]), None);
    }
}
