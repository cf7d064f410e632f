//! Data of Identify, 4,096 bytes each (Base 1.4 §5.15.2; later structures: Base 2.0 §5.17.2).

mod controller;
mod controller_bits;
mod descriptors;
mod lists;
mod namespace;
mod namespace_bits;
#[cfg(test)]
mod tests;

pub use controller::{Controller, PowerState};
pub use controller_bits::{
    Cmic, ControllerType, Ctratt, Fcatt, Fna, LogPageAttributes, Oacs, Oaes, Ofcs, Oncs, SglSupport,
    VendorPages, VolatileCache, firmware_updates,
};
pub use descriptors::{Descriptor, DescriptorList, Descriptors};
pub use lists::NamespaceList;
pub use namespace::{IndependentNamespace, Namespace, NvmController, NvmNamespace};
pub use namespace_bits::{Dlfeat, Flbas, LbaFormat, NamespaceAttributes, NamespaceStatus, Nmic, Nsfeat};

/// Length in bytes of the data of every Identify.
pub const DATA_LEN: usize = 4096;
