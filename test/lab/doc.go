// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lab runs real Kubernetes control planes on one machine.
//
// The programs (etcd, kube-apiserver, kube-controller-manager, kubectl, …) are taken from KUBEBUILDER_ASSETS, from the
// user's cache, from setup-envtest or, where nothing can be downloaded, are built from Go modules; see Binaries.
// Start starts a control plane from them, on loopback only, attached to the caller (it dies with it) or detached
// (it lives on until StopDetached). Process runs any other program in the same way, such as Drover's own.
package lab
