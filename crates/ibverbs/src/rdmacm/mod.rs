//! librdmacm: connections by address, and `rsocket`.
