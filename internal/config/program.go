// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// Main runs a command that reads a configuration file, and returns its exit code. It parses the flags, sets up logging,
// and calls run with the path of the file and a context that ends when the process is asked to stop.
func Main(program, version string, run func(ctx context.Context, path string) error) int {
	path := flag.String("config", "/etc/drover/config.yaml", "path of the configuration file")
	options := zap.Options{}
	options.BindFlags(flag.CommandLine)
	showVersion := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if *showVersion {
		fmt.Fprintln(os.Stdout, version)
		return 0
	}
	startLog(options)
	if err := run(ctrl.SetupSignalHandler(), *path); err != nil {
		fmt.Fprintln(os.Stderr, program+":", err)
		return 1
	}
	return 0
}

// NewManager returns a controller manager for a command's configuration.
func NewManager(cfg interface{ ManagerOptions() (ctrl.Options, error) }, userAgent string) (ctrl.Manager, error) {
	hub, err := kubeconfig(userAgent)
	if err != nil {
		return nil, err
	}
	options, err := cfg.ManagerOptions()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(hub, options)
	if err != nil {
		return nil, fmt.Errorf("create manager: %w", err)
	}
	return mgr, nil
}

// kubeconfig returns the configuration that the manager uses to reach the hub's API server. It never uses a proxy from
// the environment, because such a proxy is intended for external destinations, such as release channels. It must not
// see the manager's token.
func kubeconfig(userAgent string) (*rest.Config, error) {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = userAgent
	cfg.QPS = -1 // no client-side limit, because API priority and fairness applies
	if cfg.Proxy == nil {
		cfg.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	return cfg, nil
}
