//! XRC domains.

use std::sync::Arc;

use crate::{Context, Result};

pub struct Xrcd {
    context: Arc<Context>,
}

impl Xrcd {
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// EBUSY while QPs or SRQs use it; a domain that was opened several times is closed as often.
    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}
