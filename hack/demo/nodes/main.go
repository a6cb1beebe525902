// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command nodes simulates the nodes of the demo's member.
//
// The pods of Plans are shown as running and then as completed, but run nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/drover-dev/drover/test/nodesim"
)

// usual is how long a pod runs if its command does not specify a time. It is long enough for users to watch.
const usual = 5 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	log.SetLogger(logr.Discard())
	kubeconfig := flag.String("kubeconfig", "", "path to the kubeconfig of the control plane's administrator")
	flag.Parse()
	err := run(ctx, *kubeconfig, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nodes:", err)
		os.Exit(1)
	}
}

// run simulates nodes with the given names until ctx ends. The first node is a control plane node.
func run(ctx context.Context, kubeconfig string, names []string) error {
	if len(names) == 0 {
		return errors.New("name the nodes")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{})
	if err != nil {
		return fmt.Errorf("reach %s: %w", config.Host, err)
	}
	sim := nodesim.Start(ctx, c, outcome)
	defer sim.Close()
	labels := map[string]string{"node-role.kubernetes.io/control-plane": "true"}
	for _, name := range names {
		if err := sim.AddNode(ctx, name, labels); err != nil {
			return err
		}
		labels = nil
	}
	<-ctx.Done()
	return nil
}

// outcome returns how a pod ends. The command "false" fails, "sleep 60" takes a minute, and any other command takes a
// few seconds and succeeds.
func outcome(pod *corev1.Pod) nodesim.Script {
	if pod.Labels["job-name"] == "" {
		return nodesim.Script{Hangs: true} // the pod belongs to an application
	}
	container := &pod.Spec.Containers[0]
	words := append(append([]string(nil), container.Command...), container.Args...)
	if len(words) == 0 {
		return nodesim.Script{Takes: usual}
	}
	switch program, rest := words[0], words[1:]; {
	case program == "false":
		return nodesim.Script{Takes: usual, Exit: 1, Log: "false: this always fails\n"}
	case program == "sleep" && len(rest) == 1:
		text := rest[0]
		if !strings.ContainsAny(text, "smh") {
			text += "s"
		}
		if takes, err := time.ParseDuration(text); err == nil {
			return nodesim.Script{Takes: takes}
		}
		return nodesim.Script{Exit: 1, Log: "sleep: invalid time interval '" + rest[0] + "'\n"}
	}
	return nodesim.Script{Takes: usual}
}
