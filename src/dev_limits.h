/* dev_limits: the bounds of the devices that a layout depends on, as data, so that the planner's sim device can stand for a device that this machine does not have and need not
   open. Each device's own table is made from its row. (dev.h says what the fields mean.) */
#ifndef DEV_LIMITS_H
#define DEV_LIMITS_H

#define LIMITS_CPU  .align = 64,  .queue_work = 0,         .comm_stage = 4 << 20, .wire_stage = 4 << 20,  .wire_cast = true, .host_memory = true, .outside = 128 << 20, \
  .rate = { .gemm = { [DT_F32] = 150e9, [DT_BF16] = 300e9 }, .attn = { [DT_F32] = 60e9, [DT_BF16] = 80e9 }, .copy = 8e9, .link = 2e9 }
#define LIMITS_CUDA .align = 256, .queue_work = 160 << 20, .comm_stage = 1 << 20, .wire_stage = 64 << 20, .wire_cast = true, .outside = 1 << 30, \
  .rate = { .gemm = { [DT_F32] = 45e12, [DT_BF16] = 680e12 }, .attn = { [DT_F32] = 10e12, [DT_BF16] = 550e12 }, .copy = 3.8e12, .link = 300e9 }

#endif
