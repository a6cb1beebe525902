// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1 contains the v1 kinds of the cluster.drover.dev API group.
//
// The comments on the types and fields become the descriptions in the CRDs. "kubectl explain" displays these
// descriptions.
//
// +kubebuilder:object:generate=true
// +groupName=cluster.drover.dev
package v1
