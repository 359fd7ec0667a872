//! The driver's virtual memory as a source of pages.

use std::ops::Range;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    self, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1 as AllocationFlags, CUmemAllocationType,
    CUmemLocation, CUmemLocationType,
};
use plimsoll_memory::{Bytes, Region, Source, SourceError};

use super::context::{Context, check};
use super::handles::{DETOUR_BYTES, Handles, Physical};
use crate::backend::REGION_BYTES;
use crate::error::{Error, Result};

/// Pages of the driver's virtual memory: addresses are reserved once, memory comes and goes behind them.
pub struct DriverPages {
    /// Declared before the addresses, so that no memory is behind them when they are given back.
    handles: Mutex<Handles<Device>>,
    bases: [u64; 3],
    granule: u64,
    _addresses: Vec<Addresses>,
}

impl DriverPages {
    pub(super) fn new(context: &Arc<Context>, granule: u64) -> Result<DriverPages> {
        context.enter()?;
        let device = Device { context: context.clone() };
        let smallest = device.granule()?;
        if !granule.is_multiple_of(smallest) {
            return Err(Error::new(format!(
                "the driver's pages have {}, and the profile of this GPU says {}",
                Bytes::new(smallest),
                Bytes::new(granule)
            )));
        }
        let sizes = [REGION_BYTES, REGION_BYTES, REGION_BYTES, DETOUR_BYTES];
        let reserve = |n_bytes| Addresses::reserve(context, n_bytes, granule);
        let addresses = sizes.into_iter().map(reserve).collect::<Result<Vec<_>>>()?;
        Ok(DriverPages {
            handles: Mutex::new(Handles::new(device, granule, addresses[3].start)),
            bases: [addresses[0].start, addresses[1].start, addresses[2].start],
            granule,
            _addresses: addresses,
        })
    }

    /// The addresses of a range of a region.
    fn addresses(&self, region: Region, range: &Range<u64>) -> Range<u64> {
        assert!(range.start <= range.end && range.end <= REGION_BYTES, "range outside the region");
        let base = self.bases[region as usize];
        base + range.start..base + range.end
    }
}

// SAFETY: each region has addresses of its own, reserved at a multiple of the granule until `self` is dropped; what is
// committed is mapped there with read and write access for the device, and for nobody else.
unsafe impl Source for DriverPages {
    fn granule(&self) -> u64 {
        self.granule
    }

    fn region_bytes(&self, _: Region) -> u64 {
        REGION_BYTES
    }

    fn base(&self, region: Region) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.bases[region as usize] as usize)
    }

    fn commit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = self.addresses(region, &range);
        let committed = handles.physical().context.enter().and_then(|()| handles.commit(addresses));
        committed.map_err(|error| {
            let asked = Bytes::new(range.end - range.start);
            let has = match handles.physical().context.memory() {
                Ok(memory) => format!(
                    "it has {} free of {}, and other processes may hold the rest",
                    Bytes::new(memory.free),
                    Bytes::new(memory.total)
                ),
                Err(_) => "nor does it say what is free".to_owned(),
            };
            SourceError::new(format!("the GPU's driver did not give {asked}: {error}; {has}"))
        })
    }

    fn decommit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = self.addresses(region, &range);
        let decommitted = handles.physical().context.enter().and_then(|()| handles.decommit(addresses));
        decommitted.map_err(|error| {
            let size = Bytes::new(range.end - range.start);
            SourceError::new(format!("the GPU's driver did not take {size} back: {error}"))
        })
    }
}

/// Reserved addresses, given back on drop.
struct Addresses {
    context: Arc<Context>,
    start: u64,
    n_bytes: u64,
}

impl Addresses {
    fn reserve(context: &Arc<Context>, n_bytes: u64, granule: u64) -> Result<Addresses> {
        let mut start = 0;
        // SAFETY: the context is current; the call writes one address.
        let status =
            unsafe { sys::cuMemAddressReserve(&raw mut start, n_bytes as usize, granule as usize, 0, 0) };
        check(status, "cuMemAddressReserve")?;
        Ok(Addresses { context: context.clone(), start, n_bytes })
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: the addresses were reserved, and nothing is mapped there any more.
        let _ = unsafe { sys::cuMemAddressFree(self.start, self.n_bytes as usize) };
    }
}

/// The physical memory of a GPU. The context must be current.
struct Device {
    context: Arc<Context>,
}

impl Device {
    fn location(&self) -> CUmemLocation {
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: self.context.device }
    }

    /// Memory of this GPU, for this process alone.
    fn properties(&self) -> CUmemAllocationProp {
        CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: self.location(),
            win32HandleMetaData: ptr::null_mut(),
            allocFlags: AllocationFlags {
                compressionType: 0,
                gpuDirectRDMACapable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        }
    }

    /// What sizes must be multiples of.
    fn granule(&self) -> Result<u64> {
        let (mut granule, properties) = (0, self.properties());
        let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the context is current; the call reads the properties and writes one number.
        let status =
            unsafe { sys::cuMemGetAllocationGranularity(&raw mut granule, &raw const properties, least) };
        check(status, "cuMemGetAllocationGranularity")?;
        Ok(granule as u64)
    }
}

impl Physical for Device {
    fn create(&self, n_bytes: u64) -> Result<u64> {
        let (mut handle, properties) = (0, self.properties());
        // SAFETY: the size is a multiple of the granule; the call reads the properties and writes one handle.
        let status = unsafe { sys::cuMemCreate(&raw mut handle, n_bytes as usize, &raw const properties, 0) };
        check(status, "cuMemCreate")?;
        Ok(handle)
    }

    fn map(&self, at: u64, n_bytes: u64, handle: u64) -> Result<()> {
        // SAFETY: the addresses are reserved and nothing is mapped there; the handle has as many bytes.
        check(unsafe { sys::cuMemMap(at, n_bytes as usize, 0, handle, 0) }, "cuMemMap")
    }

    fn release(&self, handle: u64) -> Result<()> {
        // SAFETY: the handle was created and not released yet.
        check(unsafe { sys::cuMemRelease(handle) }, "cuMemRelease")
    }

    fn unmap(&self, range: Range<u64>) -> Result<()> {
        // SAFETY: the range is whole mappings, and the device is done with them.
        check(unsafe { sys::cuMemUnmap(range.start, (range.end - range.start) as usize) }, "cuMemUnmap")
    }

    fn allow(&self, range: Range<u64>) -> Result<()> {
        let access = CUmemAccessDesc {
            location: self.location(),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let n_bytes = (range.end - range.start) as usize;
        // SAFETY: the range is mapped; the call reads one description.
        check(unsafe { sys::cuMemSetAccess(range.start, n_bytes, &raw const access, 1) }, "cuMemSetAccess")
    }

    fn copy(&self, from: u64, to: u64, n_bytes: u64) -> Result<()> {
        let stream = self.context.stream;
        // SAFETY: both ranges are mapped and accessible.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, n_bytes as usize, stream) }, "cuMemcpyDtoDAsync")?;
        self.wait()
    }

    fn wait(&self) -> Result<()> {
        self.context.synchronize()
    }
}
