// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1 defines the kinds of the API group cluster.drover.dev, version v1: the user's manual in Go.
//
// +kubebuilder:object:generate=true
// +groupName=cluster.drover.dev
package v1
