//! The driver's context and its streams, made current on whichever thread calls.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute as Attribute, CUevent, CUevent_flags, CUresult, CUstream,
    CUstream_flags, CUstream_st,
};

use super::libraries::Library;
use crate::backend::MemoryInfo;
use crate::backend::Stream;
use crate::error::{Error, Result};
use crate::profile::Profile;

/// A GPU's primary context, which every library of the process shares, and streams of our own in it.
pub(super) struct Context {
    pub device: CUdevice,
    context: CUcontext,
    pub stream: CUstream,
    /// The stream that takes launches: the compute stream, but while a graph is captured.
    target: AtomicPtr<CUstream_st>,
    /// Those of copies beside the work, in the order of `Stream`; made when the first is.
    copy_streams: OnceLock<[CUstream; 2]>,
}

// SAFETY: the driver's functions may be called from any thread once the context is current there; `enter` sees to that.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The GPU of that number, and its profile.
    pub fn open(number: usize) -> Result<(Context, Profile)> {
        let (device, profile) = find(number)?;
        let mut context = ptr::null_mut();
        // SAFETY: the device is valid; the reference is given back on drop.
        let status = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) };
        check(status, "cuDevicePrimaryCtxRetain")?;
        let (stream, target) = (ptr::null_mut(), AtomicPtr::default());
        let mut opened = Context { device, context, stream, target, copy_streams: OnceLock::new() };
        opened.enter()?;
        opened.stream = opened.new_stream()?;
        opened.send_to(opened.stream);
        Ok((opened, profile))
    }

    /// The stream that takes launches.
    pub fn target(&self) -> CUstream {
        self.target.load(Ordering::Relaxed)
    }

    /// Sends launches to a stream. Whoever launches holds the lock of `Pending`, and so does whoever calls this.
    pub fn send_to(&self, stream: CUstream) {
        self.target.store(stream, Ordering::Relaxed);
    }

    pub fn new_stream(&self) -> Result<CUstream> {
        let mut stream = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: the context is current.
        check(unsafe { sys::cuStreamCreate(&raw mut stream, flags) }, "cuStreamCreate")?;
        Ok(stream)
    }

    /// The stream of that kind.
    pub fn stream_of(&self, stream: Stream) -> Result<CUstream> {
        if stream == Stream::Compute {
            return Ok(self.stream);
        }
        if self.copy_streams.get().is_none() {
            self.enter()?;
            let made = [self.new_stream()?, self.new_stream()?];
            if let Err(made) = self.copy_streams.set(made) {
                for stream in made {
                    // SAFETY: another thread was quicker; these streams are ours, and nothing is in them.
                    let _ = unsafe { sys::cuStreamDestroy_v2(stream) };
                }
            }
        }
        let made = self.copy_streams.get().unwrap_or_else(|| unreachable!("made just now"));
        Ok(made[stream as usize])
    }

    /// Makes the context current on this thread. Asking the driver first is cheaper than setting it again, and right
    /// even if somebody else in the process has set another one.
    #[inline]
    pub fn enter(&self) -> Result<()> {
        let mut current = ptr::null_mut();
        // SAFETY: the driver is initialised; the call writes one pointer.
        let status = unsafe { sys::cuCtxGetCurrent(&raw mut current) };
        if status == CUresult::CUDA_SUCCESS && current == self.context {
            return Ok(());
        }
        // SAFETY: the context is alive as long as `self`.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "cuCtxSetCurrent")
    }

    /// Waits until all work of all streams is done.
    pub fn synchronize(&self) -> Result<()> {
        self.synchronize_compute()?;
        for &stream in self.copy_streams.get().into_iter().flatten() {
            // SAFETY: the stream is alive as long as `self`.
            check(unsafe { sys::cuStreamSynchronize(stream) }, "cuStreamSynchronize")?;
        }
        Ok(())
    }

    /// Waits until all work of the compute stream is done.
    pub fn synchronize_compute(&self) -> Result<()> {
        self.enter()?;
        // SAFETY: the stream is alive as long as `self`.
        check(unsafe { sys::cuStreamSynchronize(self.stream) }, "cuStreamSynchronize")
    }

    /// What the device has and what is free.
    pub fn memory(&self) -> Result<MemoryInfo> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current; the call writes two numbers.
        check(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) }, "cuMemGetInfo")?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    /// Memory of the host that the device reads and writes directly, for as long as the process lives unless it is freed.
    pub fn host_memory(&self, n_bytes: usize) -> Result<*mut u8> {
        self.enter()?;
        let mut address = ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the context is current; the call writes one pointer.
        check(unsafe { sys::cuMemHostAlloc(&raw mut address, n_bytes, flags) }, "cuMemHostAlloc")?;
        Ok(address.cast())
    }

    /// An event for ordering, without times.
    pub fn event(&self) -> Result<CUevent> {
        self.enter()?;
        let mut event = ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        // SAFETY: the context is current; the call writes one pointer.
        check(unsafe { sys::cuEventCreate(&raw mut event, flags) }, "cuEventCreate")?;
        Ok(event)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Nothing can be done about a failure here, and nothing of ours is left to suffer from it.
        let _ = self.enter();
        let copy_streams = self.copy_streams.get().copied().unwrap_or([ptr::null_mut(); 2]);
        // SAFETY: the streams are ours, and nobody has them any more; the reference to the context was taken once.
        unsafe {
            for stream in [self.stream, copy_streams[0], copy_streams[1]] {
                if !stream.is_null() {
                    let _ = sys::cuStreamDestroy_v2(stream);
                }
            }
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// The GPU of that number and its profile, by asking the driver, which takes no memory of the GPU for that.
pub(super) fn find(number: usize) -> Result<(CUdevice, Profile)> {
    Library::Driver.require()?;
    // SAFETY: the library is there; initialising it twice does nothing.
    check(unsafe { sys::cuInit(0) }, "cuInit")?;
    let mut n_devices: c_int = 0;
    // SAFETY: the driver is initialised; the call writes one number.
    check(unsafe { sys::cuDeviceGetCount(&raw mut n_devices) }, "cuDeviceGetCount")?;
    let ordinal = c_int::try_from(number).ok().filter(|&ordinal| ordinal < n_devices).ok_or_else(|| {
        Error::new(format!("there is no GPU {number}: the driver has {n_devices}, numbered from 0"))
    })?;
    let mut device: CUdevice = 0;
    // SAFETY: the ordinal was checked; the call writes one number.
    check(unsafe { sys::cuDeviceGet(&raw mut device, ordinal) }, "cuDeviceGet")?;
    Ok((device, profile(device)?))
}

/// The model's profile if the model is known, so that ghosts of it agree; else what the driver says.
fn profile(device: CUdevice) -> Result<Profile> {
    let mut name = [0 as c_char; 256];
    // SAFETY: the call writes at most as many bytes as there is room for, with a zero at the end.
    let status = unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device) };
    check(status, "cuDeviceGetName")?;
    // SAFETY: the driver ended the name with a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut total = 0;
    // SAFETY: the call writes one number.
    check(unsafe { sys::cuDeviceTotalMem_v2(&raw mut total, device) }, "cuDeviceTotalMem")?;
    let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let known = Profile::of_model(&name);
    let asked = Profile {
        architecture: 10 * major + minor,
        n_multiprocessors: attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: total as u64,
        shared_bytes_per_block: attribute(
            device,
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        name,
        // What the driver does not tell of a model that nobody has described is taken to be as on an H200.
        ..known.clone().unwrap_or_else(Profile::h200)
    };
    let Some(known) = known else { return Ok(asked) };
    let agrees = Profile { memory_bytes: known.memory_bytes, ..asked.clone() } == known;
    if !agrees {
        log::warn!(
            "this {} is not as its profile says, so ghosts of it may predict something else",
            asked.name
        );
    }
    Ok(if agrees { known } else { asked })
}

fn attribute(device: CUdevice, attribute: Attribute) -> Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: the device is valid; the call writes one number.
    check(unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) }, "cuDeviceGetAttribute")?;
    u32::try_from(value).map_err(|_| Error::new(format!("the driver gives {value} for {attribute:?}")))
}

/// An error if a call of the driver failed, with the driver's name and text for it.
#[inline]
pub(super) fn check(status: CUresult, call: &str) -> Result<()> {
    match status {
        CUresult::CUDA_SUCCESS => Ok(()),
        other => Err(failure(other, call)),
    }
}

#[cold]
fn failure(status: CUresult, call: &str) -> Error {
    let text = |get: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = ptr::null();
        // SAFETY: the call writes the address of a constant string, or of none.
        let known = unsafe { get(status, &raw mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
        // SAFETY: the driver's constants end in zero.
        known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    let name = text(sys::cuGetErrorName).unwrap_or_else(|| format!("{status:?}"));
    let text = text(sys::cuGetErrorString).unwrap_or_else(|| "no text".to_owned());
    Error::new(format!("{call} failed with {name} ({text})"))
}
