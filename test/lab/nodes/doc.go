// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodes runs clusters with real nodes on one Linux machine: kind without Docker.
//
// A control plane is one of package lab, on loopback. A node is a tree of processes in namespaces of its own (network,
// mounts, PIDs, host name, cgroups): containerd, kubelet, kube-proxy and a DNS server, with a root file system that
// shares only the machine's programs. When the first process of that tree is killed, the kernel ends the rest and
// removes mounts, network devices and rules. The cgroups and the lab's folder are what Down removes by itself.
package nodes
