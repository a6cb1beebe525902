// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"

	"github.com/drover-dev/drover/agent/daemon"
	"github.com/drover-dev/drover/internal/tracing"
)

// flushTimeout limits how long the agent may take to send the last spans when it stops.
const flushTimeout = 2 * time.Second

// environ is a function that reads the agent's settings.
type environ func(lookup func(string) (string, bool)) (daemon.Environ, error)

// run reads the settings from the environment and runs the agent or another part of the binary.
func run(ctx context.Context, kubeconfig string, read environ, work func(context.Context, daemon.Options) error) error {
	env, err := read(os.LookupEnv)
	if err != nil {
		return err
	}
	config := zap.NewProductionConfig()
	config.Sampling, config.DisableStacktrace = nil, true
	config.EncoderConfig.EncodeTime = zapcore.RFC3339TimeEncoder // the same format as in the manager
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
	host, _ := os.Hostname() // the pod's name distinguishes the spans of replicas
	tracer, err := tracing.New(ctx, tracing.Options{
		Endpoint: tracing.Endpoint(os.LookupEnv), Service: "drover-agent", Version: version, Instance: host,
		Environ: os.LookupEnv, Log: log.WithName("tracing"),
	})
	if err != nil {
		return err
	}
	defer flush(ctx, tracer, log)
	return work(ctx,
		daemon.Options{Kubeconfig: kubeconfig, Environ: env, Version: version, Log: log, Level: config.Level, Tracer: tracer})
}

func flush(ctx context.Context, tracer *tracing.Tracer, log logr.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := tracer.Close(ctx); err != nil {
		log.Error(err, "cannot send the last spans")
	}
}
