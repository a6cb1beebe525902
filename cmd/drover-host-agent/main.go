// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover-host-agent joins the machine that it runs on to a Drover hub, and carries out the hub's instructions.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/go-logr/zapr"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/drover-dev/drover/agent/host"
	"github.com/drover-dev/drover/agent/host/instructions"
)

// version is set by the linker.
var version = "v0.1.0-dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal terminates the process immediately
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "drover-host-agent:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var root string
	top := &cobra.Command{
		Use: "drover-host-agent", Short: "Join this machine to a Drover hub and carry out its instructions", SilenceErrors: true, SilenceUsage: true,
		Long: "The configuration is in " + host.DefaultConfigDir + " or in the folder of " + host.EnvConfigDir + ". See docs/spec/host.md.",
	}
	run := &cobra.Command{Use: "run", Short: "Run the agent", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), root) }}
	run.Flags().StringVar(&root, "root", "", "folder to prefix to the paths of files, for tests")
	cobra.CheckErr(run.Flags().MarkHidden("root"))
	top.AddCommand(run, joinCommand(), s3Command(),
		&cobra.Command{
			Use: "instruction FOLDER", Short: "Run one instruction of the journal", Hidden: true, Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				// the instruction continues if the agent exits
				return instructions.Supervise(context.WithoutCancel(cmd.Context()), args[0])
			},
		},
		&cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs, Run: func(cmd *cobra.Command, _ []string) { cmd.Println(version) }})
	top.SetOut(os.Stdout)
	return top
}

func run(ctx context.Context, root string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	config := zap.NewProductionConfig()
	config.Sampling, config.DisableStacktrace = nil, true
	config.EncoderConfig.EncodeTime = zapcore.RFC3339TimeEncoder
	logger, err := config.Build()
	if err != nil {
		return fmt.Errorf("set up the log: %w", err)
	}
	log := zapr.NewLogger(logger)
	dir := host.ConfigDir(os.Getenv)
	log.Info("starting", "version", version, "configuration", dir)
	return host.Run(ctx, host.Options{
		ConfigDir: dir, Root: root, Version: version, Log: log,
		Supervisor: func(entry string) *exec.Cmd {
			return exec.CommandContext(context.WithoutCancel(ctx), self, "instruction", entry)
		}, // the instruction outlives the agent
	})
}
