// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover-provisioner makes clusters of Hosts with k3s, RKE2 and Cluster API, and talks to Drover's manager
// through objects of the hub only.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/drover-dev/drover/controllers/provision"
	core "github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/provision/config"
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
	core.StartLog(options)
	if err := run(ctrl.SetupSignalHandler(), *path); err != nil {
		fmt.Fprintln(os.Stderr, "drover-provisioner:", err)
		os.Exit(1)
	}
}

// run wires the manager and runs it until ctx ends.
func run(ctx context.Context, path string) error {
	cfg, err := config.Load(path)
	if err != nil {
		return err
	}
	kubeconfig, err := core.Kubeconfig("drover-provisioner/" + version)
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
	if err := provision.Setup(mgr, cfg); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("healthz", healthz.Ping); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
