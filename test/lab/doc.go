// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lab runs real Kubernetes control planes on one machine.
//
// Binaries provides the programs, such as etcd, kube-apiserver and kube-controller-manager. It takes them from
// KUBEBUILDER_ASSETS, the user's cache or setup-envtest, or builds them from Go modules if nothing can be downloaded.
// Start starts a control plane that listens only on loopback. An attached control plane ends with its caller. A
// detached one runs until StopDetached is called. Process runs any other program in the same way, for example
// Drover's own.
package lab
