// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config embeds the manifests that programs need: the CRD that the agent installs in its member, the policies
// that manager and provisioner expect on the hub, and the role templates that the manager applies.
package config

import "embed"

// Plans is the CustomResourceDefinition of Plans, in YAML.
//
//go:embed crd/bases/cluster.drover.dev_plans.yaml
var Plans []byte

// Policies contains the hub's admission policies: the manager's in the folder policy, and the provisioner's.
//
//go:embed policy/*.yaml provision/policy.yaml clusterapi/policy.yaml clusterapi/import/policy.yaml
var Policies embed.FS

// RoleTemplates contains the built-in role templates.
//
//go:embed roles/templates/*.yaml
var RoleTemplates embed.FS
