// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"k8s.io/klog/v2"

	"github.com/drover-dev/drover/agent/daemon"
	"github.com/drover-dev/drover/agent/environ"
)

// run runs the agent with the settings of the environment.
func run(ctx context.Context, kubeconfig string) error {
	env, err := environ.Read(os.LookupEnv)
	if err != nil {
		return err
	}
	config := zap.NewProductionConfig()
	config.Sampling, config.DisableStacktrace = nil, true
	if env.Debug {
		config.Level.SetLevel(zap.DebugLevel)
	}
	logger, err := config.Build()
	if err != nil {
		return fmt.Errorf("set up the log: %w", err)
	}
	log := zapr.NewLogger(logger)
	klog.SetLogger(log.WithName("client-go"))
	log.Info("starting", "version", version, "servers", env.Servers, "trust", env.Trust)
	return daemon.Run(ctx, daemon.Options{Kubeconfig: kubeconfig, Environ: env, Version: version, Log: log, Level: config.Level})
}
