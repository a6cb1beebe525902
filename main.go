// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command manager is Drover's hub: its controllers, and the server for agents and users.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/drover-dev/drover/controllers"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/memory"
	"github.com/drover-dev/drover/internal/server"
	"github.com/drover-dev/drover/internal/trust"
)

// version is set at build time.
var version = "v0.1.0-dev"

func main() {
	path := flag.String("config", "/etc/drover/config.yaml", "path of the configuration file")
	options := zap.Options{}
	options.BindFlags(flag.CommandLine)
	showVersion := flag.Bool("version", false, "print the version and end")
	flag.Parse()
	if *showVersion {
		fmt.Println(version)
		return
	}
	config.StartLog(options)

	if err := run(ctrl.SetupSignalHandler(), *path); err != nil {
		fmt.Fprintln(os.Stderr, "drover manager:", err)
		os.Exit(1)
	}
}

// run starts the manager and serves until ctx is done.
func run(ctx context.Context, path string) error {
	cfg, err := config.Load(path)
	if err != nil {
		return err
	}
	kubeconfig, err := config.Kubeconfig("drover-manager/" + version)
	if err != nil {
		return err
	}
	options, err := cfg.ManagerOptions()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(kubeconfig, options)
	if err != nil {
		return fmt.Errorf("make manager: %w", err)
	}
	if err := cfg.SetAgentImage(ctx, mgr.GetAPIReader(), os.Getenv(config.EnvPod)); err != nil {
		return err
	}
	holder, err := trust.New(cfg.Server.URLs, []string{"localhost", net.IPv4(127, 0, 0, 1).String(), net.IPv6loopback.String()}, time.Now)
	if err != nil {
		return err
	}
	serving, err := server.New(ctx, mgr, cfg, holder)
	if err != nil {
		return err
	}
	leader, err := server.NewLeader(mgr, cfg)
	if err != nil {
		return err
	}
	if err := controllers.Setup(leader, controllers.Options{Config: cfg, Members: serving.Members, Issuer: serving.SignIn, Trust: holder, Synced: serving.Synced, Deliveries: serving.Deliveries(), Checkpoints: leader.Checkpoints}); err != nil {
		return err
	}
	go memory.Manage(ctx, 16<<20)
	return server.Run(ctx, mgr, leader.Start, serving.Start)
}
