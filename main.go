// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command manager is Drover's hub: its controllers and the server for agents and users.
package main

import (
	"context"
	"net"
	"os"
	"time"

	"github.com/drover-dev/drover/controllers"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/memory"
	"github.com/drover-dev/drover/internal/server"
	"github.com/drover-dev/drover/internal/trust"
)

// version is set by the linker at build time.
var version = "v0.1.0-dev"

func main() { os.Exit(config.Main("drover manager", version, run)) }

// run starts the manager and serves requests until ctx is canceled.
func run(ctx context.Context, path string) error {
	cfg, err := config.Load(path)
	if err != nil {
		return err
	}
	mgr, err := config.NewManager(cfg, "drover-manager/"+version)
	if err != nil {
		return err
	}
	if err := cfg.SetAgentImage(ctx, mgr.GetAPIReader(), os.Getenv(config.EnvPod)); err != nil {
		return err
	}
	holder, err := trust.New(cfg.Server.URLs, []string{"localhost", net.IPv4(127, 0, 0, 1).String(), net.IPv6loopback.String()}, time.Now)
	if err != nil {
		return err
	}
	leader, err := server.NewLeader(mgr, cfg)
	if err != nil {
		return err
	}
	serving, err := server.New(ctx, mgr, cfg, holder, leader.Checkpoints.Led)
	if err != nil {
		return err
	}
	if err := controllers.Setup(leader, controllers.Options{Config: cfg, Members: serving.Members, Issuer: serving.SignIn, Trust: holder, Synced: serving.Synced, Deliveries: serving.Deliveries(), Checkpoints: leader.Checkpoints}); err != nil {
		return err
	}
	go memory.Manage(ctx, 16<<20)
	return server.Run(ctx, mgr, leader.Start, serving.Start)
}
