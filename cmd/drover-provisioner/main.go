// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover-provisioner creates clusters from Hosts, using k3s, RKE2 or Cluster API.
//
// It communicates with Drover's manager only through objects on the hub.
package main

import (
	"context"
	"os"

	"github.com/drover-dev/drover/controllers/provision"
	core "github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/provision/config"
)

// version is set by the linker at build time.
var version = "v0.1.0-dev"

func main() { os.Exit(core.Main("drover-provisioner", version, run)) }

func run(ctx context.Context, path string) error {
	cfg, err := config.Load(path)
	if err != nil {
		return err
	}
	mgr, err := core.NewManager(cfg, "drover-provisioner/"+version)
	if err != nil {
		return err
	}
	if err := provision.Setup(mgr, cfg); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
