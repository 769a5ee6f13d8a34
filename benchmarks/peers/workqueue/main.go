// The same operations as benchmarks/queues.py, on client-go's own queue. Prints name and
// nanoseconds per operation.
package main

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

const operations = 1_000_000

func report(name string, count int, work func()) {
	started := time.Now()
	work()
	fmt.Printf("%s %.1f\n", name, float64(time.Since(started).Nanoseconds())/float64(count))
}

func main() {
	report("collapsed add", operations, func() {
		q := workqueue.NewTyped[int]()
		q.Add(1)
		for i := 0; i < operations; i++ {
			q.Add(1)
		}
	})
	report("add+get+done", operations, func() {
		q := workqueue.NewTyped[int]()
		for i := 0; i < operations; i++ {
			q.Add(i)
			key, _ := q.Get()
			q.Done(key)
		}
	})
	report("4 producers, 4 workers", operations, func() {
		q := workqueue.NewTyped[int]()
		var producers, workers sync.WaitGroup
		for w := 0; w < 4; w++ {
			workers.Add(1)
			go func() {
				defer workers.Done()
				for {
					key, stopped := q.Get()
					if stopped {
						return
					}
					q.Done(key)
				}
			}()
		}
		for p := 0; p < 4; p++ {
			producers.Add(1)
			go func() {
				defer producers.Done()
				for i := p; i < operations; i += 4 {
					q.Add(i)
				}
			}()
		}
		producers.Wait()
		q.ShutDown()
		workers.Wait()
	})
	report("add_after, 100,000 keys", 100_000, func() {
		q := workqueue.NewTypedDelayingQueue[int]()
		for i := 0; i < 100_000; i++ {
			q.AddAfter(i, time.Hour+time.Duration(i%1000)*time.Second)
		}
		q.ShutDown()
	})
}
