// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import "testing"

// TestClusters runs tests of one Cluster each, in parallel on one hub and in one member.
func TestClusters(t *testing.T) {
	t.Parallel()
	s := start(t)
	t.Run("beside each other", func(t *testing.T) { testClusters(t, s) })
	t.Run("no secret is in a log, a status or an event", func(t *testing.T) { testNothingLeaks(t, s) })
}

func testClusters(t *testing.T, s *system) {
	for name, test := range map[string]func(*testing.T, *system){
		"logs, exec, attach, port-forward and cp work through the hub": testStreams,
		"a watch through the hub is prompt and lasts":                  testWatch,
		"an agent with a wrong token does not join":                    testWrongToken,
		"an agent with an expired token does not join":                 testExpiredToken,
		"a used token does not replace a key":                          testUsedToken,
		"a token that the user chose lets the agent join":              testChosenToken,
		"a rebuilt member comes back under its name":                   testRebuiltMember,
		"an agent whose Secret is deleted is cut and refused":          testRevokedAgent,
		"a server with a certificate of another CA is refused":         testImpostor,
		"odd requests are refused":                                     testRawRequests,
		"the hub's own API is served with the caller's own rights":     testLocal,
		"a Cluster whose agent never returns is removed":               testLeftBehind,
		"a Cluster that is made again is another":                      testMadeAgain,
		"what config/samples applies works and stays as it was":        testSamples,
		"only a user who may read a Secret may name it":                testChosenTokenPolicy,
		"only a user with the right to it may change the agent":        testAgentPolicy,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}
