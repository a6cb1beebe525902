// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"
	"strings"
	"testing"
)

func TestChooseNodes(t *testing.T) {
	fault := errors.New("it takes root")
	for name, c := range map[string]struct {
		wanted, kept string
		fault        error
		want         string
		remark       string
		err          string // in the error
	}{
		"real ones where the machine can run them":       {"", "", nil, realNodes, "", ""},
		"simulated ones elsewhere, with what is missing": {"", "", fault, simulatedNodes, "the nodes are simulated: it takes root", ""},
		"what the user asks for":                         {simulatedNodes, "", nil, simulatedNodes, "", ""},
		"real ones, which the machine cannot run":        {realNodes, "", fault, "", "", "it takes root"},
		"what is there":                                      {"", simulatedNodes, nil, simulatedNodes, "", ""},
		"what is there and is asked for":                     {realNodes, realNodes, nil, realNodes, "", ""},
		"other ones than those that are there":               {simulatedNodes, realNodes, nil, "", "", "run \"make demo-down\" first"},
		"real ones that are there, now without root":         {"", realNodes, fault, "", "", "it takes root"},
		"simulated ones that are there, on any machine":      {"", simulatedNodes, fault, simulatedNodes, "", ""},
		"a word that is neither, also where a demo is there": {"fake", realNodes, nil, "", "", "want real or simulated"},
	} {
		t.Run(name, func(t *testing.T) {
			chosen, remark, err := chooseNodes(c.wanted, c.kept, c.fault)
			if chosen != c.want || remark != c.remark {
				t.Errorf("got %q with the remark %q, want %q with %q", chosen, remark, c.want, c.remark)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("the error is %v, want %q in it", err, c.err)
			}
		})
	}
}

func TestTheHubsPortOfARunningLabIsNotChanged(t *testing.T) {
	s, err := loadState(t.TempDir() + "/state.json")
	if err != nil {
		t.Fatal(err)
	}
	d := &demo{files: layout{root: t.TempDir()}, state: s}
	s.Nodes = realNodes
	if err := d.keepHubPort(); err != nil || s.HubPort == 0 {
		t.Fatalf("the first port is %d, %v: want a free one", s.HubPort, err)
	}
	port := s.HubPort
	taken, err := net.Listen("tcp", address(port))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if err := d.keepHubPort(); err == nil || !strings.Contains(err.Error(), "is taken") || s.HubPort != port {
		t.Errorf("while another program has port %d, got port %d and %v: want it kept and an error", port, s.HubPort, err)
	}
	s.Nodes = simulatedNodes
	if err := d.keepHubPort(); err != nil || s.HubPort == port {
		t.Errorf("with simulated nodes, got port %d and %v: want another one", s.HubPort, err)
	}
}
