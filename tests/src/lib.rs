//! The Landfall lab: the emulated WAN, the cluster harness, the demo.
