// SPDX-License-Identifier: GPL-2.0-only

// Command load has two clients, each with a request at a time in a goroutine of
// its own, beside a batch that grows the heap by MIB, drops that, and has the
// runtime give it back.
//
//	load OUT MS MIB
//
// The latency is that of a request, which allocates objects of 256 KiB in all
// that live until the answer.
package main

import (
	"fmt"
	"log"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	clients   = 2
	parts     = 256
	partBytes = 1024
	// The sum over all values of a byte, each of which a request writes once.
	answer = 255 * 256 / 2
	// Of the batch.
	chunkBytes = 256 << 10
	idle       = 500 * time.Millisecond
)

func request(seed int) int {
	kept := make([][]byte, parts)
	for number := range kept {
		kept[number] = make([]byte, partBytes)
		kept[number][partBytes/2] = byte(seed + number)
	}
	sum := 0
	for _, part := range kept {
		sum += int(part[partBytes/2])
	}
	return sum
}

// Makes requests until end, and returns the microseconds of each.
func client(end time.Time) []int64 {
	var took []int64
	answers := make(chan int)
	for before := time.Now(); before.Before(end); {
		seed := len(took)
		go func() { answers <- request(seed) }()
		if <-answers != answer {
			log.Fatal("a request has a wrong answer")
		}
		now := time.Now()
		took = append(took, now.Sub(before).Microseconds())
		before = now
	}
	return took
}

func fill(mib int, stop chan struct{}) {
	kept := make([][]byte, mib<<20/chunkBytes)
	for number := range kept {
		select {
		case <-stop:
			return
		default:
		}
		kept[number] = make([]byte, chunkBytes)
		for place := range kept[number] {
			kept[number][place] = 1
		}
	}
	runtime.KeepAlive(kept)
}

func released() int64 {
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return int64(now.HeapReleased)
}

// The number of batches, and the bytes that were given back after them, so far.
var rounds, givenBack int64

func batch(mib int, stop chan struct{}) {
	for {
		fill(mib, stop)
		before := released()
		debug.FreeOSMemory()
		if more := released() - before; more > 0 {
			atomic.AddInt64(&givenBack, more)
		}
		atomic.AddInt64(&rounds, 1)
		select {
		case <-stop:
			return
		case <-time.After(idle):
		}
	}
}

func write(name, text string) {
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		log.Fatal(err)
	}
}

func counters(name string) {
	text, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		log.Fatal(err)
	}
	write(name, string(text))
}

func number(word string) int {
	value, err := strconv.Atoi(word)
	if err != nil || value < 1 {
		log.Fatalf("'%s' is not a number of 1 or more", word)
	}
	return value
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 4 {
		log.Fatal("usage: load OUT MS MIB")
	}
	out, ms, mib := os.Args[1], number(os.Args[2]), number(os.Args[3])
	stop, ended, answers := make(chan struct{}), make(chan struct{}), make(chan []int64)
	counters(out + ".before")
	start := time.Now()
	end := start.Add(time.Duration(ms) * time.Millisecond)
	go func() {
		batch(mib, stop)
		close(ended)
	}()
	for count := 0; count < clients; count++ {
		go func() { answers <- client(end) }()
	}
	var took []int64
	for count := 0; count < clients; count++ {
		took = append(took, <-answers...)
	}
	seconds := time.Since(start).Seconds()
	counters(out + ".after")
	write(out+".facts", fmt.Sprintf("batches %d\nheap_given_back_mib %d\n",
		atomic.LoadInt64(&rounds), atomic.LoadInt64(&givenBack)>>20))
	close(stop)
	<-ended
	var text strings.Builder
	for _, us := range took {
		fmt.Fprintln(&text, us)
	}
	write(out+".latency", text.String())
	write(out+".work", fmt.Sprintf("%d %.3f\n", len(took), seconds))
}
