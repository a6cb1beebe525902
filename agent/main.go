// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover-agent connects the cluster that it runs in to a Drover hub.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/zapr"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"k8s.io/klog/v2"

	"github.com/drover-dev/drover/agent/daemon"
	"github.com/drover-dev/drover/agent/environ"
	"github.com/drover-dev/drover/agent/loglevel"
)

// version is set when the program is linked.
var version = "v0.1.0-dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "drover-agent:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var kubeconfig, level string
	run := func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), kubeconfig) }
	root := &cobra.Command{
		Use: "drover-agent", Short: "Connect the cluster that this runs in to a Drover hub", Long: "Settings come from the environment, see docs/operations.md.",
		Args: cobra.NoArgs, RunE: run, SilenceErrors: true, SilenceUsage: true,
	}
	root.PersistentFlags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster, for an agent that runs outside of it")
	set := &cobra.Command{
		Use: "loglevel", Short: "Change the log level of the agent that runs here", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now, err := loglevel.Set(cmd.Context(), environ.Socket(os.LookupEnv), level)
			if err == nil {
				cmd.Println("log level is now", now)
			}
			return err
		},
	}
	set.Flags().StringVar(&level, "set", "", "the new level, debug or info")
	cobra.CheckErr(set.MarkFlagRequired("set"))
	root.AddCommand(set,
		&cobra.Command{Use: "run", Short: "Run the agent (what happens without a command)", Args: cobra.NoArgs, RunE: run},
		&cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs, Run: func(cmd *cobra.Command, _ []string) { cmd.Println(version) }})
	root.SetOut(os.Stdout)
	return root
}

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
