//! Profiles: what is known of a model of GPU without asking one.
//!
//! Ghost and real runs read the same profile, so that a machine without the GPU predicts the bytes of one that has it.
//! Every choice of a kernel that depends on the device depends on its profile alone.

/// A model of GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The model, as the driver names it.
    pub name: String,
    /// The architecture for which kernels are compiled: 90 for compute capability 9.0.
    pub architecture: u32,
    /// The number of multiprocessors.
    pub n_multiprocessors: u32,
    /// The memory in bytes.
    pub memory_bytes: u64,
    /// The unit in which pages are committed, in bytes.
    pub granule: u64,
    /// The shared memory that a block may take, in bytes.
    pub shared_bytes_per_block: u32,
    /// The most that a matrix product may take as scratch memory.
    pub matmul_workspace: usize,
    /// The most that a convolution may take as scratch memory.
    pub convolution_workspace: usize,
}

impl Profile {
    /// The profile of a model, if there is one.
    pub fn of_model(name: &str) -> Option<Profile> {
        [Profile::h200()].into_iter().find(|profile| profile.name == name)
    }

    /// An NVIDIA H200.
    pub fn h200() -> Profile {
        Profile {
            name: "NVIDIA H200".to_owned(),
            architecture: 90,
            n_multiprocessors: 132,
            memory_bytes: 143_771 << 20,
            granule: 2 << 20,
            shared_bytes_per_block: 227 << 10,
            matmul_workspace: 32 << 20,
            convolution_workspace: 128 << 20,
        }
    }
}
