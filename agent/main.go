// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover-agent connects the cluster that it runs in to a Drover hub.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"

	"github.com/drover-dev/drover/agent/daemon"
	"github.com/drover-dev/drover/internal/tracing"
)

// version is set by the linker.
var version = "v0.1.0-dev"

func main() {
	setRuntime(os.Getenv)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal terminates the process immediately
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "drover-agent:", err)
		leaveMessage(terminationLog, err)
		os.Exit(1)
	}
}

// runError is an error that makes the container's main process exit. Other commands, such as loglevel, can run in the
// same container. They must not overwrite the termination message of the main process.
type runError struct{ error }

func (e *runError) Unwrap() error { return e.error }

// terminationLog is the default of a container's terminationMessagePath. The kubelet copies the content of this file
// to the status of the pod.
const terminationLog = "/dev/termination-log"

// leaveMessage writes the message of a runError to the termination log at the given path. It ignores other errors,
// and does nothing outside a container.
func leaveMessage(path string, err error) {
	if ended := (*runError)(nil); !errors.As(err, &ended) {
		return
	}
	file, openErr := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if openErr != nil {
		return
	}
	_, writeErr := file.WriteString(daemon.Presentable(err.Error()))
	if err := errors.Join(writeErr, file.Close()); err != nil {
		fmt.Fprintln(os.Stderr, "drover-agent: cannot leave a message for the kubelet:", err)
	}
}

// setRuntime sets the runtime options that the environment does not set.
func setRuntime(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(50) // saves 7 MiB with 20,000 pods, at almost no cost in CPU time
	}
	if getenv("GOMAXPROCS") == "" {
		// With a single thread, requests do not move between threads. This reduces the CPU time per request by a fifth.
		// See docs/design/0060-garbage.md.
		runtime.GOMAXPROCS(1)
	}
}

func command() *cobra.Command {
	var kubeconfig, level string
	var askVersion bool
	run := func(read environ, work func(context.Context, daemon.Options) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, _ []string) error {
			if askVersion {
				cmd.Println(version)
				return nil
			}
			if err := run(cmd.Context(), kubeconfig, read, work); err != nil {
				return &runError{err}
			}
			return nil
		}
	}
	root := &cobra.Command{
		Use: "drover-agent", Short: "Connect the cluster that this runs in to a Drover hub",
		Long: "Settings come from the environment, see docs/operations/agents.md.",
		Args: cobra.NoArgs, RunE: run(daemon.ReadEnviron, daemon.Run), SilenceErrors: true, SilenceUsage: true,
	}
	// Do not use cobra's own version flag. It links text/template, which makes the linker keep every exported method of
	// every type.
	root.Flags().BoolVarP(&askVersion, "version", "v", false, "version for drover-agent")
	root.PersistentFlags().StringVar(&kubeconfig, "kubeconfig", "",
		"kubeconfig of the cluster, for an agent that runs outside of it")
	set := &cobra.Command{
		Use: "loglevel", Short: "Change the log level of the agent that runs here", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now, err := daemon.SetLogLevel(cmd.Context(), daemon.Socket(os.LookupEnv), level)
			if err == nil {
				cmd.Println("log level is now", now)
			}
			return err
		},
	}
	set.Flags().StringVar(&level, "set", "", "the new level, debug or info")
	cobra.CheckErr(set.MarkFlagRequired("set"))
	root.AddCommand(set,
		&cobra.Command{
			Use: "probe PATH", Short: "Ask the agent that runs here for /healthz or /readyz", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return daemon.Probe(cmd.Context(), daemon.Socket(os.LookupEnv), args[0])
			},
		},
		&cobra.Command{Use: "run", Short: "Run the agent (the default)", Args: cobra.NoArgs,
			RunE: run(daemon.ReadEnviron, daemon.Run)},
		&cobra.Command{Use: "node", Short: "Run a node agent, which connects while the agent does not", Args: cobra.NoArgs,
			RunE: run(daemon.ReadEnviron, daemon.RunNode)},
		&cobra.Command{
			Use: "direct", Short: "Review tokens for the API server of this node, for users who do not go through the hub",
			Args: cobra.NoArgs,
			RunE: run(daemon.ReadDirectEnviron, daemon.RunDirect),
		},
		&cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs,
			Run: func(cmd *cobra.Command, _ []string) { cmd.Println(version) }})
	root.SetOut(os.Stdout)
	return root
}

// flushTimeout limits how long the agent sends its last spans when it stops.
const flushTimeout = 2 * time.Second

// environ reads the settings of the agent.
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
