// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1 contains the kinds of the API group cluster.drover.dev, version v1.
//
// Their comments become the descriptions of the CRDs, which "kubectl explain" shows.
//
// +kubebuilder:object:generate=true
// +groupName=cluster.drover.dev
package v1
