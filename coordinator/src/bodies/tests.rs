//! Plans of functions whose bodies fit no single worker.
