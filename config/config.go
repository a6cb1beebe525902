// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config holds the manifests that programs need: the schema that the agent brings to its member, and the
// policies that the manager looks for.
package config

import "embed"

// Plans is the CustomResourceDefinition of Plans in YAML.
//
//go:embed crd/bases/cluster.drover.dev_plans.yaml
var Plans []byte

// Policies are the admission policies of the hub, in the folder policy.
//
//go:embed policy/*.yaml
var Policies embed.FS
