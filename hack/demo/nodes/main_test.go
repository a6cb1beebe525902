// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/test/nodesim"
)

func TestOutcome(t *testing.T) {
	for name, test := range map[string]struct {
		command, args []string
		want          nodesim.Script
	}{
		"an image's own command takes some seconds":  {nil, nil, nodesim.Script{Takes: usual}},
		"false fails, and says so in its log":        {[]string{"false"}, nil, nodesim.Script{Takes: usual, Exit: 1, Log: "false: this always fails\n"}},
		"sleep takes its seconds":                    {[]string{"sleep"}, []string{"60"}, nodesim.Script{Takes: time.Minute}},
		"sleep takes a unit too":                     {nil, []string{"sleep", "2m"}, nodesim.Script{Takes: 2 * time.Minute}},
		"sleep without a time that it knows fails":   {nil, []string{"sleep", "long"}, nodesim.Script{Exit: 1, Log: "sleep: invalid time interval 'long'\n"}},
		"another command succeeds, whatever it says": {[]string{"sh", "-c", "false"}, nil, nodesim.Script{Takes: usual}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"job-name": "x"}}}
			pod.Spec.Containers = []corev1.Container{{Command: test.command, Args: test.args}}
			if got := outcome(pod); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
	t.Run("an application runs on", func(t *testing.T) {
		if got := outcome(&corev1.Pod{}); !got.Hangs {
			t.Errorf("got %+v", got)
		}
	})
}
