// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodes runs clusters with real nodes on one Linux machine, like kind but without Docker.
//
// Control planes come from package lab and listen on loopback. A node is a tree of processes in its own namespaces
// (network, mounts, PIDs, host name, cgroups). The processes are containerd, kubelet, kube-proxy and a DNS server.
// The root file system of a node shares only programs with the machine. When the first process of the tree is killed,
// the kernel ends the other processes and removes the node's mounts, network devices and rules. Down therefore only
// has to remove the cgroups and the lab's folder.
package nodes
