//! Completion of an Asynchronous Event Request (Base 1.4 §5.2).

codes! {
    /// Asynchronous event type.
    pub enum AsyncEventType: u8 {
        Error = 0x0, "error status";
        Notice = 0x2, "notice";
    }
}

codes! {
    /// Asynchronous event information of a notice.
    pub enum Notice: u8 {
        NamespaceAttributeChanged = 0x00, "namespace attribute changed";
        DiscoveryLogPageChange = 0xf0, "discovery log page change";
    }
}

bits! {
    /// Dword 0 of the response.
    pub struct AsyncEvent(u32) {
        /// Asynchronous event type, see [`AsyncEventType`].
        event_type / with_event_type: u8 = [2:0],
        /// Asynchronous event information, its meaning depends on the type.
        information / with_information: u8 = [15:8],
        /// Log page to read; reading it without RAE re-arms events of this type.
        log_page / with_log_page: u8 = [23:16],
    }
}

impl AsyncEvent {
    /// Returns a notice that refers to this log page.
    pub fn notice(notice: Notice, log_page: super::LogPage) -> Self {
        Self(0)
            .with_event_type(AsyncEventType::Notice.code())
            .with_information(notice.code())
            .with_log_page(log_page.code())
    }

    /// Returns the notice, if known.
    pub fn as_notice(self) -> Option<Notice> {
        let is_notice = self.event_type() == AsyncEventType::Notice.code();
        if is_notice { Notice::decode(self.information()) } else { None }
    }
}
