// SPDX-License-Identifier: GPL-2.0-only
//! Numbers of protobuf fields: protos/perfetto/trace/trace_packet.proto and track_event/*.proto of Perfetto.

pub mod packet {
    pub const TIMESTAMP: u32 = 8;
    pub const SEQUENCE_ID: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const INTERNED_DATA: u32 = 12;
    pub const SEQUENCE_FLAGS: u32 = 13;
    pub const TRACK_DESCRIPTOR: u32 = 60;
}

pub mod descriptor {
    pub const UUID: u32 = 1;
    pub const NAME: u32 = 2;
    pub const PROCESS: u32 = 3;
    pub const PARENT: u32 = 5;
    pub const CHILD_ORDERING: u32 = 11;
    pub const RANK: u32 = 12;
    pub const EXPLICIT: u64 = 3;
    pub const PROCESS_PID: u32 = 1;
    pub const PROCESS_NAME: u32 = 6;
}

pub mod event {
    pub const CATEGORY: u32 = 3;
    pub const ANNOTATION: u32 = 4;
    pub const TYPE: u32 = 9;
    pub const NAME: u32 = 10;
    pub const TRACK: u32 = 11;
    pub const FLOW: u32 = 47;
    pub const FLOW_END: u32 = 48;
    pub const BEGIN: u64 = 1;
    pub const END: u64 = 2;
    pub const INSTANT: u64 = 3;
    pub const ANNOTATION_NAME: u32 = 1;
    pub const ANNOTATION_UINT: u32 = 3;
}

/// Tables of interned strings, by their field in InternedData.
pub const CATEGORIES: u32 = 1;
pub const NAMES: u32 = 2;
pub const ANNOTATIONS: u32 = 3;
