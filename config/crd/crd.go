// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crd holds the schema of Plans for the agent, which brings it to its member.
package crd

import _ "embed" // for Plans

// Plans is the CustomResourceDefinition of Plans in YAML.
//
//go:embed bases/cluster.drover.dev_plans.yaml
var Plans []byte
